/**
 * The source of an installation: the wheels in the extension, pinned by hash, or the user's checkout or wheel. Never a
 * name: whoever registers that name on a package index could run code here. Pure.
 */

import { posix, win32 } from "node:path";

/** Paths for pip. `folder` has the kernels' wheels, of which pip takes the one for this machine. */
export type Source =
  | { readonly kind: "carried"; readonly wheels: readonly string[]; readonly requirements: string; readonly folder: string }
  | { readonly kind: "path"; readonly path: string };

/** The extension's folder with the wheels of codespec, its kernels, its weights and `--upstream`, and the requirements. */
export interface Carried {
  readonly folder: string;
  readonly names: readonly string[];
}

export class SourceError extends Error {}

const REQUIREMENTS = "requirements-base.txt";
/** The kernels' package, whose wheels differ from system to system. */
export const KERNELS = "codespec_native";
const WHEELS = [/^codespec-[^/\\]+\.whl$/, /^codespec_weights-[^/\\]+\.whl$/, /^codespec_upstream-[^/\\]+\.whl$/];

/** Returns the source for a setting. Throws SourceError if it is not a path, or if the extension carries no wheels. */
export function findSource(setting: string, home: string, windows: boolean, carried: Carried): Source {
  const { isAbsolute, join } = windows ? win32 : posix;
  const path = expandHome(setting, home);
  if (path && !isAbsolute(path))
    throw new SourceError(
      `codespec.installFrom is ${path}, which is not an absolute path: name a checkout of codespec ` +
        "(/path/to/codespec) or a wheel, or empty it to install what the extension carries.",
    );
  if (path) return { kind: "path", path };
  const wheels = WHEELS.flatMap((wheel) => carried.names.filter((name) => wheel.test(name)));
  const whole = WHEELS.every((wheel, index) => wheel.test(wheels[index] ?? "")) && wheels.length === WHEELS.length;
  const kernels = carried.names.some((name) => name.startsWith(`${KERNELS}-`) && name.endsWith(".whl"));
  if (!whole || !kernels || !carried.names.includes(REQUIREMENTS))
    throw new SourceError(
      "This build of the extension carries no server: build it with `npm run package`, or name a checkout " +
        "(codespec.installFrom).",
    );
  const at = (name: string): string => join(carried.folder, name);
  return { kind: "carried", wheels: wheels.map(at), requirements: at(REQUIREMENTS), folder: carried.folder };
}

/** Returns the source's name, for the log and for the mark of a complete environment. */
export function named(source: Source): string {
  return source.kind === "path" ? source.path : (source.wheels[0] ?? "");
}

export function expandHome(path: string, home: string): string {
  return path.trim().replace(/^~(?=[\\/])/, () => home);
}
