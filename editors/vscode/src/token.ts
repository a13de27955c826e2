/** What a token must be, and what becomes of one that stands in the settings. Pure; the daemon has the same rule. */

export const LEAST = 16; // characters

/** Why a text is no token, "" where it is one. */
export function tokenFault(text: string): string {
  if (/[^\x20-\x7e]/.test(text)) return "A token is made of ASCII characters: leave out the others.";
  if (text.length < LEAST) return `A token has ${LEAST} characters or more: make it longer.`;
  return "";
}

/** The old setting's value: to be moved, to be dropped because a token was set since, or useless. */
export function whatOf(old: string, kept: string): "nothing" | "move" | "drop" | "tell" {
  if (!old) return "nothing";
  if (kept) return "drop";
  return tokenFault(old) ? "tell" : "move";
}
