/** Which Python can hold the server. Knows how versions are asked for and read; starts nothing itself. */

import { findProgram, type Machine } from "./find_server.ts";

export const LEAST = [3, 11] as const;
const NAMES = ["python3", "python", "python3.14", "python3.13", "python3.12", "python3.11"];
const WINDOWS_NAMES = ["python", "python3", "py"];

/** Prints the version, then fails where no environment can be made (Debian packs that apart). */
export const QUESTION =
  "import sys; print('%d.%d.%d' % sys.version_info[:3]); sys.stdout.flush(); import ensurepip, venv";

/** What a Python said to the question. */
export interface Answer {
  readonly code: number;
  readonly text: string;
}

export class PythonError extends Error {}

/** The paths to try, the likeliest first. Raises PythonError where the setting leads nowhere. */
export function candidates(setting: string, machine: Machine): string[] {
  const given = setting.trim();
  if (given) {
    const path = findProgram(given, machine);
    if (path) return [path];
    throw new PythonError(`codespec.python is ${given}, which is not a program: correct the setting, or clear it.`);
  }
  const names = machine.windows ? WINDOWS_NAMES : NAMES;
  const found = names.map((name) => findProgram(name, machine)).filter((path) => path !== undefined);
  if (found.length) return [...new Set(found)];
  throw new PythonError("There is no Python here: install Python 3.11 or newer, or set codespec.python.");
}

/** The first that is new enough and can make environments. Raises PythonError that says what the others lack. */
export async function choosePython(paths: readonly string[], ask: (path: string) => Promise<Answer>): Promise<string> {
  const faults: string[] = [];
  for (const path of paths) {
    const fault = faultOf(path, await ask(path));
    if (!fault) return path;
    faults.push(fault);
  }
  throw new PythonError(faults.find((fault) => fault.includes("venv")) ?? faults[0] ?? "No Python was found.");
}

/** The numbers of a version, or null. */
export function parseVersion(text: string): readonly [number, number, number] | null {
  const found = /^(?:Python )?(\d+)\.(\d+)\.(\d+)/m.exec(text.trim());
  return found ? [Number(found[1]), Number(found[2]), Number(found[3])] : null;
}

export function isNewEnough([major, minor]: readonly [number, number, number]): boolean {
  return major > LEAST[0] || (major === LEAST[0] && minor >= LEAST[1]);
}

function faultOf(path: string, { code, text }: Answer): string {
  const version = parseVersion(text);
  const mend = "install Python 3.11 or newer, or set codespec.python.";
  if (!version) return `${path} does not run: ${mend}`;
  if (!isNewEnough(version)) return `${path} is Python ${version.join(".")}, which is too old: ${mend}`;
  return code === 0 ? "" : `${path} can't make environments: install its venv package (Debian: python3-venv).`;
}
