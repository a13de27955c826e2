import assert from "node:assert/strict";
import { test } from "node:test";
import { Single } from "../src/single.ts";

test("a second one does not begin while the first is still beginning, nor while it runs", async () => {
  const single = new Single();
  let begun = 0;
  let release = (): void => {};
  const slow = (): Promise<void> => {
    begun++;
    return new Promise((resolve) => (release = resolve));
  };
  const first = single.begin(slow);
  await single.begin(slow);
  assert.equal(begun, 1);
  release();
  await first;
  await single.begin(slow);
  assert.equal(begun, 1);
});

test("what ends before its beginning returns makes room for the next", async () => {
  const single = new Single();
  await single.begin(async () => single.end());
  let begun = false;
  await single.begin(async () => (begun = true));
  assert.ok(begun);
});

test("what can't begin says so and makes room for the next", async () => {
  const single = new Single();
  await assert.rejects(
    single.begin(() => Promise.reject(new Error("no terminal"))),
    /no terminal/,
  );
  let begun = false;
  await single.begin(async () => (begun = true));
  assert.ok(begun);
});
