/** Finds the `codespec` program: by the setting, else on PATH, else in the extension's own environment. Pure. */

import { posix, win32 } from "node:path";

/** The facts about the machine that the search needs. */
export interface Machine {
  readonly windows: boolean;
  readonly home: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Whether an executable file exists at a path. */
  isProgram(path: string): boolean;
  /** Whether anything exists at a path. */
  exists(path: string): boolean;
}

export type Found =
  | { readonly kind: "found"; readonly path: string }
  | { readonly kind: "missing" }
  | { readonly kind: "wrong"; readonly sentence: string };

/** Returns the program to start. A setting without a program is an error; nothing else is tried then. */
export function findServer(setting: string, environment: string, machine: Machine): Found {
  const given = setting.trim();
  if (given) {
    const path = findProgram(given, machine);
    if (path) return { kind: "found", path };
    return {
      kind: "wrong",
      sentence: `codespec.command is ${given}, which is not a program: correct the setting, or clear it.`,
    };
  }
  const path = findProgram("codespec", machine) ?? own(environment, machine);
  return path ? { kind: "found", path } : { kind: "missing" };
}

/**
 * Returns the absolute path of a program given by path or by name, or undefined. Relative paths are refused, because
 * they would depend on the open folder.
 */
export function findProgram(given: string, machine: Machine): string | undefined {
  const { isAbsolute, join } = paths(machine);
  const expanded = /^~[\\/]/.test(given) ? join(machine.home, given.slice(2)) : given;
  if (/[\\/]/.test(expanded))
    return isAbsolute(expanded) ? firstProgram(spellings(expanded, machine), machine) : undefined;
  const names = spellings(expanded, machine);
  return firstProgram(
    folders(machine).flatMap((folder) => names.map((name) => join(folder, name))),
    machine,
  );
}

/** Returns the folder of a Python environment's programs. */
export function inEnvironment(environment: string, name: string, windows: boolean): string {
  return windows ? win32.join(environment, "Scripts", `${name}.exe`) : posix.join(environment, "bin", name);
}

/** Returns the path of the file that marks the environment as complete. */
export function readyMark(environment: string, windows: boolean): string {
  return (windows ? win32 : posix).join(environment, "codespec-ready");
}

function own(environment: string, machine: Machine): string | undefined {
  if (!machine.exists(readyMark(environment, machine.windows))) return undefined;
  return firstProgram([inEnvironment(environment, "codespec", machine.windows)], machine);
}

function firstProgram(places: readonly string[], machine: Machine): string | undefined {
  return places.find((place) => machine.isProgram(place));
}

/** Returns the names to try: Windows finds `codespec` as codespec.exe. */
function spellings(name: string, { windows }: Machine): string[] {
  return windows && !/\.exe$/i.test(name) ? [`${name}.exe`] : [name];
}

/** Returns the folders of PATH. */
function folders(machine: Machine): string[] {
  const { delimiter, isAbsolute } = paths(machine);
  const path = machine.windows ? (machine.env["Path"] ?? machine.env["PATH"]) : machine.env["PATH"];
  return (path ?? "").split(delimiter).filter((folder) => isAbsolute(folder));
}

function paths({ windows }: Machine): typeof posix {
  return windows ? win32 : posix;
}
