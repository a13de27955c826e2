import assert from "node:assert/strict";
import { test } from "node:test";
import { AGAIN_MS, isOffer, mayAsk, type Offer, question } from "../src/offer.ts";

const OFFER: Offer = { model: "smollm2-135m", bytes: 92_871_040 };

test("the user is asked once, again after a week, and never after never", () => {
  const now = Date.UTC(2026, 0, 1);
  assert.ok(mayAsk(undefined, now));
  assert.ok(!mayAsk({ at: now - 1, never: false }, now));
  assert.ok(!mayAsk({ at: now - AGAIN_MS + 1, never: false }, now));
  assert.ok(mayAsk({ at: now - AGAIN_MS, never: false }, now));
  assert.ok(!mayAsk({ at: 0, never: true }, now));
});

test("the question names the model and what is downloaded", () => {
  assert.match(question(OFFER), /Pull smollm2-135m \(93 MB\)/);
});

test("what is no offer is not run", () => {
  assert.ok(isOffer(OFFER));
  for (const wrong of [undefined, null, 3, {}, { model: "x" }]) assert.ok(!isOffer(wrong));
  for (const model of ["", "--name", "a b", "./x", 3]) assert.ok(!isOffer({ ...OFFER, model }), String(model));
  assert.ok(!isOffer({ ...OFFER, bytes: "93" }));
});
