/** Computes the rest of a ghost text while the user types. All functions are pure. */

/**
 * Returns the rest of the completion after the characters `typed` since the request. Returns `""` if the user has typed
 * all of the streamed text or more, and null if the typed characters differ from the completion.
 */
export function restAlong(text: string, ended: boolean, typed: string): string | null {
  if (text.startsWith(typed)) return text.slice(typed.length);
  return !ended && typed.startsWith(text) ? "" : null;
}

/** Returns the first word of a ghost text and the white space before it; a run of punctuation counts as a word. */
export function firstWord(text: string): string {
  return /^\s*(?:[\p{L}\p{N}\p{M}_]+|[^\p{L}\p{N}\p{M}_\s]+)?/u.exec(text)?.[0] || text;
}
