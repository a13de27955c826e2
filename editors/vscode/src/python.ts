/** Chooses a Python for the server's environment. Starts no process itself. */

import { findProgram, type Machine } from "./find_server.ts";

export const MIN = [3, 11] as const;
const NAMES = ["python3", "python", "python3.14", "python3.13", "python3.12", "python3.11"];
const WINDOWS_NAMES = ["python", "python3", "py"];

/** Prints the version, then fails if venv is missing (a separate package on Debian). */
export const QUESTION =
  "import sys; print('%d.%d.%d' % sys.version_info[:3]); sys.stdout.flush(); import ensurepip, venv";

/** The answer of a Python. */
export interface Answer {
  readonly code: number;
  readonly text: string;
}

export class PythonError extends Error {}

/** Returns the paths to try, the likeliest first. Throws PythonError if the setting names no program. */
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

/** Returns the first that is new enough and has venv. Throws PythonError with the reason if none is. */
export async function choosePython(paths: readonly string[], ask: (path: string) => Promise<Answer>): Promise<string> {
  const faults: string[] = [];
  for (const path of paths) {
    const fault = faultOf(path, await ask(path));
    if (!fault) return path;
    faults.push(fault);
  }
  throw new PythonError(faults.find((fault) => fault.includes("venv")) ?? faults[0] ?? "No Python was found.");
}

/** Returns the numbers of a version, or null. */
export function parseVersion(text: string): readonly [number, number, number] | null {
  const found = /^(?:Python )?(\d+)\.(\d+)\.(\d+)/m.exec(text.trim());
  return found ? [Number(found[1]), Number(found[2]), Number(found[3])] : null;
}

export function isNewEnough([major, minor]: readonly [number, number, number]): boolean {
  return major > MIN[0] || (major === MIN[0] && minor >= MIN[1]);
}

function faultOf(path: string, { code, text }: Answer): string {
  const version = parseVersion(text);
  const fix = "install Python 3.11 or newer, or set codespec.python.";
  if (!version) return `${path} does not run: ${fix}`;
  if (!isNewEnough(version)) return `${path} is Python ${version.join(".")}, which is too old: ${fix}`;
  return code === 0 ? "" : `${path} can't make environments: install its venv package (Debian: python3-venv).`;
}
