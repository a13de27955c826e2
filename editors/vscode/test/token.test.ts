import assert from "node:assert/strict";
import { test } from "node:test";
import { tokenFault, whatOf } from "../src/token.ts";

const GOOD = "0123456789abcdef";

test("a token is as the daemon wants it", () => {
  assert.equal(tokenFault(GOOD), "");
  assert.match(tokenFault(GOOD.slice(1)), /16 characters or more: make it longer\.$/);
  assert.match(tokenFault(`${GOOD}é`), /ASCII/);
  assert.match(tokenFault(`${GOOD}\n`), /ASCII/);
});

test("one in the settings is moved once, never over a newer one, and told where it is useless", () => {
  assert.equal(whatOf("", ""), "nothing");
  assert.equal(whatOf(GOOD, ""), "move");
  assert.equal(whatOf(GOOD, "another-token-0123"), "drop");
  assert.equal(whatOf("short", ""), "tell");
});
