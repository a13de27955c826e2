/** All alternatives at a position as one text, with the lines of each. Pure. */

/** The text, and each alternative's lines from its heading `first` up to `end`, the heading of the next one. */
export interface Listed {
  readonly text: string;
  readonly sections: readonly { readonly first: number; readonly end: number }[];
}

/** Returns the list. `where` names the position; each text begins with the line that it continues. */
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

/** Returns the index of the alternative that contains a line, or -1. */
export function sectionAt({ sections }: Listed, line: number): number {
  return sections.findIndex(({ first, end }) => first <= line && line < end);
}

/** Returns the position after a text that is inserted at a position. */
export function endOf(text: string, line: number, character: number): readonly [number, number] {
  const lines = text.split(/\r\n|\n/);
  const last = lines.at(-1)!.length;
  return [line + lines.length - 1, lines.length === 1 ? character + last : last];
}
