/** What is left of a ghost text when somebody types. Pure. */

/**
 * What to show behind the characters `typed` since the completion was asked for: the rest of its text, `""` while the
 * typist is as far as the stream (or beyond it), or null where they part and the completion is of no use.
 */
export function restAlong(text: string, ended: boolean, typed: string): string | null {
  if (text.startsWith(typed)) return text.slice(typed.length);
  return !ended && typed.startsWith(text) ? "" : null;
}

/** The first word of a ghost text with the white space before it; a run of signs counts as a word. */
export function firstWord(text: string): string {
  return /^\s*(?:[\p{L}\p{N}\p{M}_]+|[^\p{L}\p{N}\p{M}_\s]+)?/u.exec(text)?.[0] || text;
}
