import assert from "node:assert/strict";
import { test } from "node:test";
import { endOf, listed, sectionAt } from "../src/alternatives.ts";

test("each stands under its number, whatever it holds, and a line belongs to one", () => {
  const page = listed("a.py, line 3", ["    return 1", "    for x in y:\r\n        pass"]);
  assert.deepEqual(page.text.split("\n"), [
    "a.py, line 3: 2 suggestions. Enter inserts the one at the cursor.",
    "",
    "─── 1 of 2 ───",
    "    return 1",
    "",
    "─── 2 of 2 ───",
    "    for x in y:",
    "        pass",
    "",
  ]);
  assert.deepEqual(
    [0, 1, 2, 3, 4, 5, 7, 8, 9].map((line) => sectionAt(page, line)),
    [-1, -1, 0, 0, 0, 1, 1, 1, -1],
  );
});

test("the cursor goes behind what was put in", () => {
  assert.deepEqual(endOf("abc", 4, 2), [4, 5]);
  assert.deepEqual(endOf("abc\r\nde", 4, 2), [5, 2]);
  assert.deepEqual(endOf("abc\n", 4, 2), [5, 0]);
});
