/** The rules for tokens, which are the daemon's, and the removal of a token from the settings. Pure. */

export const MIN = 16; // characters

/** Returns why a text is not a valid token, or "". */
export function tokenFault(text: string): string {
  if (/[^\x20-\x7e]/.test(text)) return "A token is made of ASCII characters: leave out the others.";
  if (text.length < MIN) return `A token has ${MIN} characters or more: make it longer.`;
  return "";
}

/** Returns what to do with a token in the settings: move it, drop it because a newer one is stored, or report it. */
export function whatOf(old: string, kept: string): "nothing" | "move" | "drop" | "tell" {
  if (!old) return "nothing";
  if (kept) return "drop";
  return tokenFault(old) ? "tell" : "move";
}
