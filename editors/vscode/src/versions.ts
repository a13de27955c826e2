/** Compares the versions of the extension and its language server. Pure. */

/** The running server: its version, the path of its program, and whether this extension installed it. */
export interface Serving {
  readonly version: string;
  readonly path: string;
  readonly own: boolean;
}

/** Returns a warning with a fix, or "" if both are equal. The language server compares itself with the daemon. */
export function versionFault(extension: string, { version, path, own }: Serving): string {
  if (version === extension) return "";
  const fix = own
    ? "run “codespec: Install the Server”."
    : "install one version of both, or empty codespec.command and run “codespec: Install the Server”.";
  return `The extension is codespec ${extension}, its language server (${path}) ${version || "an unknown one"}: ${fix}`;
}
