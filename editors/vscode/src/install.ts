/**
 * Installs the server into its own Python environment with venv and pip, and marks it as complete. A failed
 * installation is removed.
 */

import { mkdir, open, readFile, rm, stat, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { inEnvironment, readyMark } from "./find_server.ts";
import { run, type Running } from "./run.ts";
import { KERNELS, named, type Source } from "./source.ts";

export interface Plan {
  readonly python: string;
  readonly environment: string;
  readonly source: Source;
  readonly signal: AbortSignal;
  /** Receives the output of pip and venv, for the log. */
  readonly log: (line: string) => void;
  /** Receives the current step, for the user. */
  readonly step: (text: string) => void;
}

export class InstallError extends Error {}

const CHECK = ["-m", "pip", "check", "--disable-pip-version-check"];

/** Returns the program's path. Throws InstallError or Cancelled. */
export async function install(plan: Plan): Promise<string> {
  const windows = process.platform === "win32";
  const folder = dirname(plan.environment);
  await mkdir(folder, { recursive: true });
  const lock = `${plan.environment}.lock`;
  await take(lock);
  try {
    await rm(plan.environment, { recursive: true, force: true });
    await fill(plan, { cwd: folder, signal: plan.signal, onLine: plan.log }, windows);
    await writeFile(readyMark(plan.environment, windows), `${named(plan.source)}\n`);
    return inEnvironment(plan.environment, "codespec", windows);
  } catch (error) {
    await rm(plan.environment, { recursive: true, force: true });
    throw error;
  } finally {
    await rm(lock, { force: true });
  }
}

async function fill(plan: Plan, how: Running, windows: boolean): Promise<void> {
  plan.step("making a Python environment");
  await must(plan.python, ["-m", "venv", plan.environment], how, "The Python environment can't be made");
  const python = inEnvironment(plan.environment, "python", windows);
  const onLine = (line: string): void => {
    plan.log(line);
    const step = stepOf(line);
    if (step) plan.step(step);
  };
  const { source } = plan;
  if (source.kind === "carried") await pinned(python, source, { ...how, onLine });
  else await pip(python, [source.path, ...(await besides(source.path))], { ...how, onLine });
  plan.step("trying it");
  await must(
    inEnvironment(plan.environment, "codespec", windows),
    ["--version"],
    how,
    "What was installed does not run",
  );
}

/** Returns the packages that a checkout has besides codespec (`/a/codespec/weights` for `/a/codespec[torch]`). */
async function besides(path: string): Promise<readonly string[]> {
  const checkout = path.replace(/\[[^\]]*\]$/, "");
  const found: string[] = [];
  for (const folder of [join(checkout, "native"), join(checkout, "weights"), join(checkout, "plugins", "upstream")]) {
    const project = await stat(join(folder, "pyproject.toml")).catch(() => undefined); // a wheel has no folders
    if (project?.isFile()) found.push(folder);
  }
  return found;
}

/** Returns pip's arguments: every package by its hash, none built here; then the wheels, without an index. */
async function pinned(python: string, source: Source & { kind: "carried" }, how: Running): Promise<void> {
  const flags = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r"];
  await pip(python, [...flags, source.requirements], how);
  const ours = ["--no-deps", "--no-index", "--find-links", source.folder, ...source.wheels, KERNELS];
  await pip(python, ours, how).catch((error: unknown) => {
    if (!(error instanceof InstallError && error.message.includes(`No matching distribution found for ${KERNELS}`)))
      throw error;
    throw new InstallError(
      "The extension carries no kernels for this machine: name a checkout (codespec.installFrom), where they are compiled.",
    );
  });
  await must(python, CHECK, how, "What was installed is not complete");
}

function pip(python: string, args: readonly string[], how: Running): Promise<void> {
  const flags = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"];
  return must(python, ["-m", "pip", "install", ...flags, ...args], how, "pip can't install the server");
}

async function must(path: string, args: readonly string[], how: Running, complaint: string): Promise<void> {
  const { code, lines } = await run(path, args, how);
  if (code !== 0) throw new InstallError(`${complaint} (${lastWords(lines) || `exit code ${code}`}): see the log.`);
}

/** Returns the part of a line from pip that interests a user, or "". */
export function stepOf(line: string): string {
  const found = /^\s*(Collecting|Downloading|Installing collected packages|Building wheel)[: ]+(\S+)(.*)$/.exec(line);
  if (!found) return "";
  const [, what, name = "", rest = ""] = found;
  if (what === "Collecting") return `looking for ${name.replace(/[<>=!~;[(].*$/, "")}`;
  if (what === "Downloading") {
    const size = /\([^)]*\)/.exec(rest)?.[0] ?? "";
    return `fetching ${name.replace(/^.*\//, "").replace(/-.*$/, "")} ${size}`.trim();
  }
  return what === "Building wheel" ? "building" : "unpacking";
}

/** Returns the last line that names an error. */
export function lastWords(lines: readonly string[]): string {
  const told = lines.filter((line) => /^\s*(error|fatal)\b/i.test(line));
  return (told.at(-1) ?? lines.at(-1) ?? "")
    .trim()
    .replace(/^error:\s*/i, "")
    .replace(/[.:]$/, "");
}

/** Locks the folder against other windows. Throws InstallError if another one is installing. */
async function take(lock: string): Promise<void> {
  for (let tries = 0; tries < 2; tries++) {
    try {
      const file = await open(lock, "wx");
      await file.writeFile(String(process.pid));
      await file.close();
      return;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      if (isAlive(Number(await readFile(lock, "utf8")))) break;
      await rm(lock, { force: true }); // its window was closed during an installation
    }
  }
  throw new InstallError("Another window is installing the server: wait for it.");
}

function isAlive(pid: number): boolean {
  if (!(pid > 0)) return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}
