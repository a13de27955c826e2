/** Whether the extension and its language server are of one version, and the mend where not. Pure. */

/** Who serves: what it says its version is, where its program lies, and whether this extension installed it. */
export interface Serving {
  readonly version: string;
  readonly path: string;
  readonly own: boolean;
}

/** One sentence; "" where both are the same. The language server compares itself with the daemon. */
export function versionFault(extension: string, { version, path, own }: Serving): string {
  if (version === extension) return "";
  const mend = own
    ? "run “codespec: Install the Server”."
    : "install one version of both, or empty codespec.command and run “codespec: Install the Server”.";
  return `The extension is codespec ${extension}, its language server (${path}) ${version || "an unknown one"}: ${mend}`;
}
