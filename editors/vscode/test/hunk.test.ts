import assert from "node:assert/strict";
import { test } from "node:test";
import { changedWords, changesOf, holds, insertedAt, readHunk } from "../src/hunk.ts";

const LINES = ["one", "two", "three", ""];
const range = (line: number, character: number, to: number, end: number) => ({
  start: { line, character },
  end: { line: to, character: end },
});

test("an edit is read as the lines that it changes, however it is given", () => {
  const wanted = { row: 1, old: ["two"], new: ["2", "II"] };
  assert.deepEqual(readHunk({ range: range(1, 0, 2, 0), newText: "2\nII\n" }, LINES), wanted);
  assert.deepEqual(readHunk({ range: range(1, 0, 1, 3), newText: "2\r\nII" }, LINES), wanted);
  assert.deepEqual(readHunk({ range: range(0, 0, 3, 0), newText: "one\n2\nII\nthree\n" }, LINES), wanted);
  assert.deepEqual(readHunk({ range: range(1, 0, 1, 0), newText: "new\n" }, LINES), { row: 1, old: [], new: ["new"] });
  assert.deepEqual(readHunk({ range: range(0, 0, 1, 0), newText: "" }, LINES), { row: 0, old: ["one"], new: [] });
  assert.deepEqual(readHunk({ range: range(4, 0, 4, 0), newText: "end" }, LINES), { row: 4, old: [""], new: ["end"] });
  assert.equal(readHunk({ range: range(1, 0, 2, 0), newText: "two\n" }, LINES), null);
  assert.equal(readHunk({ range: range(7, 0, 8, 0), newText: "x\n" }, LINES), null);
});

test("the changed words of a line, each by itself", () => {
  assert.deepEqual(changesOf("log(total, total.size)", "log(sum, sum.size)"), [
    { from: 4, to: 9, text: "sum" },
    { from: 11, to: 16, text: "sum" },
  ]);
  assert.deepEqual(changesOf("return größe", "return 'größe'"), [
    { from: 7, to: 7, text: "'" },
    { from: 12, to: 12, text: "'" },
  ]);
  assert.equal(changesOf("import os", "def main(arguments):"), null);
  assert.equal(changesOf("a ".repeat(900), "a ".repeat(901)), null, "too long to compare");
  assert.deepEqual(changesOf("", ""), []);
});

test("lines are shown whole if their number changes", () => {
  assert.equal(changedWords({ row: 0, old: ["a"], new: ["a", "b"] }), null);
  assert.deepEqual(changedWords({ row: 0, old: ["f(a)"], new: ["f(b)"] }), [[{ from: 2, to: 3, text: "b" }]]);
});

test("which lines a hunk holds", () => {
  const rows = [0, 1, 2, 3, 4];
  assert.deepEqual(
    rows.filter((row) => holds({ row: 1, old: ["a", "b"], new: [] }, row)),
    [1, 2],
  );
  assert.deepEqual(
    rows.filter((row) => holds({ row: 2, old: [], new: ["a"] }, row)),
    [1, 2],
  );
});

test("what is inserted at the cursor and nowhere else", () => {
  assert.equal(insertedAt({ row: 3, old: ["f(a)"], new: ["f(a, b)"] }, 3, 3), ", b");
  assert.equal(insertedAt({ row: 3, old: ["f(a)"], new: ["f(a)", "g()"] }, 3, 4), "\ng()");
  assert.equal(insertedAt({ row: 3, old: ["f(a)"], new: ["f(a, b)"] }, 3, 2), null);
  assert.equal(insertedAt({ row: 3, old: ["f(a)"], new: ["f(a, b)"] }, 2, 3), null);
  assert.equal(insertedAt({ row: 3, old: ["f(a)"], new: ["f(b)"] }, 3, 3), null);
});
