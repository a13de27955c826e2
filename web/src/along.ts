/** The rest of a ghost text while the user types. Pure. */

/**
 * Returns the text to show after the characters `typed` since the request: the rest of the completion, `""` while the
 * user has typed as far as the stream (or further), or null if they differ, so that the completion no longer fits.
 */
export function restAlong(text: string, ended: boolean, typed: string): string | null {
  if (text.startsWith(typed)) return text.slice(typed.length);
  return !ended && typed.startsWith(text) ? "" : null;
}

/** Returns the first word of a ghost text with the white space before it; a run of signs counts as a word. */
export function firstWord(text: string): string {
  return /^\s*(?:[\p{L}\p{N}\p{M}_]+|[^\p{L}\p{N}\p{M}_\s]+)?/u.exec(text)?.[0] || text;
}
