import assert from "node:assert/strict";
import { test } from "node:test";
import { firstWord, restAlong } from "../src/along.ts";

test("typing along keeps the rest", () => {
  for (let typed = 0; typed <= 5; typed++) {
    assert.equal(restAlong("hello", true, "hello".slice(0, typed)), "hello".slice(typed));
  }
});

test("another word ends it", () => {
  assert.equal(restAlong("hello", true, "help"), null);
  assert.equal(restAlong("hello", false, "help"), null);
});

test("who types faster than the stream waits for it", () => {
  assert.equal(restAlong("he", false, "hello"), "");
  assert.equal(restAlong("he", true, "hello"), null);
});

test("a word takes the white space before it, and no more", () => {
  const words = (text: string): string[] => {
    const found: string[] = [];
    for (let rest = text; rest; rest = rest.slice(found.at(-1)!.length)) found.push(firstWord(rest));
    return found;
  };
  assert.deepEqual(words("  return a_b += 1\n\n"), ["  return", " a_b", " +=", " 1", "\n\n"]);
  assert.deepEqual(words("naïve(größe, 変数)"), ["naïve", "(", "größe", ",", " 変数", ")"]);
  assert.equal(firstWord(""), "");
});
