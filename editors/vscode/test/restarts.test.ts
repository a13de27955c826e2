import assert from "node:assert/strict";
import { test } from "node:test";
import { MAX, Restarts, WITHIN_MS } from "../src/restarts.ts";

test("a few within minutes, then no more until the user asks or time has passed", () => {
  const restarts = new Restarts();
  for (let n = 0; n < MAX; n++) assert.ok(restarts.allow(n * 1000));
  assert.ok(!restarts.allow(5000));
  assert.ok(restarts.allow(WITHIN_MS + 1));
  assert.ok(!restarts.allow(WITHIN_MS + 2));
  restarts.forget();
  assert.ok(restarts.allow(WITHIN_MS + 3));
});
