/** All alternatives at a place as one text to read, and where in it each stands. Pure. */

/** A text, and its lines from `first` on, which is its heading; up to `end`, which is the next one's. */
export interface Listed {
  readonly text: string;
  readonly sections: readonly { readonly first: number; readonly end: number }[];
}

/** `where` names the place; texts are shown with the line that they go on. */
export function listed(where: string, texts: readonly string[]): Listed {
  const count = texts.length === 1 ? "one suggestion" : `${texts.length} suggestions`;
  const lines = [`${where}: ${count}. Enter inserts the one at the cursor.`, ""];
  const sections = texts.map((text, index) => {
    const first = lines.length;
    lines.push(`─── ${index + 1} of ${texts.length} ───`, ...text.split(/\r\n|\n/), "");
    return { first, end: lines.length };
  });
  return { text: lines.join("\n"), sections };
}

/** Which of them a line belongs to; -1 for none. */
export function sectionAt({ sections }: Listed, line: number): number {
  return sections.findIndex(({ first, end }) => first <= line && line < end);
}

/** The place behind a text that is put in at a place. */
export function endOf(text: string, line: number, character: number): readonly [number, number] {
  const lines = text.split(/\r\n|\n/);
  const last = lines.at(-1)!.length;
  return [line + lines.length - 1, lines.length === 1 ? character + last : last];
}
