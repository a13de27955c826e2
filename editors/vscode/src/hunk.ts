/** A hunk of a next edit as whole lines, and the words of a line that it changes. Pure. */

/** An edit as the server sends it: `range` in UTF-16 units. */
export interface TextChange {
  readonly range: { readonly start: At; readonly end: At };
  readonly newText: string;
}

interface At {
  readonly line: number;
  readonly character: number;
}

/** `row` is the first line that it replaces, from 0, or the line before which it inserts if `old` is empty. */
export interface Hunk {
  readonly row: number;
  readonly old: readonly string[];
  readonly new: readonly string[];
}

/** The columns of the old line that `text` replaces. */
export interface WordChange {
  readonly from: number;
  readonly to: number;
  readonly text: string;
}

const MAX_WORDS = 400; // in the longer of two lines; a comparison takes the product of both

/** Reads an edit, without the lines at both ends that stay. Null if it changes nothing or doesn't fit the lines. */
export function readHunk({ range, newText }: TextChange, lines: readonly string[]): Hunk | null {
  const { start, end } = range;
  const old = lines.slice(start.line, end.line + 1);
  if (end.line === lines.length) old.push(""); // what follows the last line break
  if (old.length !== end.line - start.line + 1) return null;
  const text = old[0]!.slice(0, start.character) + newText + old.at(-1)!.slice(end.character);
  const added = text.split(/\r\n|\r|\n/);
  while (old.length && added.length && old.at(-1) === added.at(-1)) old.pop(), added.pop();
  let row = start.line;
  for (; old.length && added.length && old[0] === added[0]; row++) old.shift(), added.shift();
  return old.length || added.length ? { row, old, new: added } : null;
}

/** Returns whether a line is one of those that a hunk replaces, or a neighbour of the lines that it inserts. */
export function holds({ row, old }: Hunk, line: number): boolean {
  if (!old.length) return line === row || line === row - 1;
  return row <= line && line < row + old.length;
}

/** Returns the words that differ between two lines, or null if less than half of the longer line stays. */
export function changesOf(old: string, added: string): readonly WordChange[] | null {
  const [before, after] = [wordsOf(old), wordsOf(added)];
  if (Math.max(before.length, after.length) > MAX_WORDS) return null;
  const left = commonLengths(before, after);
  const found: WordChange[] = [];
  let [column, kept, change] = [0, 0, { from: 0, to: 0, text: "" }];
  for (let i = 0, j = 0; i < before.length || j < after.length; ) {
    if (i < before.length && j < after.length && before[i] === after[j]) {
      if (change.to > change.from || change.text) found.push(change);
      column += before[i]!.length;
      kept += before[i]!.length;
      change = { from: column, to: column, text: "" };
      i++;
      j++;
    } else if (j === after.length || (i < before.length && left[i + 1]![j]! >= left[i]![j + 1]!)) {
      column += before[i++]!.length;
      change = { ...change, to: column };
    } else {
      change = { ...change, text: change.text + after[j++]! };
    }
  }
  if (change.to > change.from || change.text) found.push(change);
  return 2 * kept >= Math.max(old.length, added.length) ? found : null;
}

/** Returns the changed words of every line of a hunk, or null if it is shown as whole lines. */
export function changedWords({ old, new: added }: Hunk): readonly (readonly WordChange[])[] | null {
  if (old.length !== added.length) return null;
  const found = old.map((line, index) => changesOf(line, added[index]!));
  return found.every((changes) => changes !== null) ? found : null;
}

/** Returns the text that a hunk inserts at a position and nowhere else, or null. */
export function insertedAt({ row, old, new: added }: Hunk, line: number, character: number): string | null {
  if (row !== line || old.length !== 1 || !added.length) return null;
  const [before, after] = [old[0]!.slice(0, character), old[0]!.slice(character)];
  const text = added.join("\n");
  const fits = text.length > old[0]!.length && text.startsWith(before) && text.endsWith(after);
  return fits ? text.slice(before.length, text.length - after.length) : null;
}

function wordsOf(line: string): string[] {
  return line.match(/[\p{L}\p{N}_]+|\s+|./gu) ?? [];
}

/** Returns the lengths of the longest common subsequences of all tails. */
function commonLengths(before: readonly string[], after: readonly string[]): readonly (readonly number[])[] {
  const lengths = Array.from({ length: before.length + 1 }, () => new Array<number>(after.length + 1).fill(0));
  for (let i = before.length - 1; i >= 0; i--) {
    for (let j = after.length - 1; j >= 0; j--) {
      lengths[i]![j] =
        before[i] === after[j] ? lengths[i + 1]![j + 1]! + 1 : Math.max(lengths[i + 1]![j]!, lengths[i]![j + 1]!);
    }
  }
  return lengths;
}
