/** The text of the sample file, in which a mark shows the cursor's position. Pure. */

export const SAMPLE_CURSOR = "<cursor>";

/** Returns the text without the mark, and the mark's position. Throws if there is no mark. */
export function splitSample(text: string, mark: string): { content: string; line: number; character: number } {
  const at = text.indexOf(mark);
  if (at < 0) throw new Error(`the sample has no ${mark}`);
  const before = text.slice(0, at).split("\n");
  return { content: text.replace(mark, ""), line: before.length - 1, character: before.at(-1)!.length };
}
