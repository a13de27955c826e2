import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { SAMPLE_CURSOR, splitSample } from "../src/sample.ts";

test("the sample's cursor stands in an empty body, and its mark is gone", () => {
  const { content, line, character } = splitSample(readFileSync("walkthrough/sample.txt", "utf8"), SAMPLE_CURSOR);
  const lines = content.split("\n");
  assert.match(lines[line - 1]!, /def pop\(self\):$/);
  assert.deepEqual([lines[line], character], [" ".repeat(8), 8]);
  assert.ok(!content.includes(SAMPLE_CURSOR));
  assert.throws(() => splitSample("x = 1", SAMPLE_CURSOR), /no <cursor>/);
});
