import assert from "node:assert/strict";
import { test } from "node:test";
import { savedBy } from "../src/figures.ts";
import { recorded } from "../src/recorded.ts";

test("the recorded completion is whole, and nobody's part of it is missing", () => {
  const trace = recorded();
  assert.ok(trace.done && trace.text);
  assert.equal(trace.rounds.length, trace.done.stats.rounds);
  assert.equal(
    trace
      .runs()
      .map((run) => trace.text.slice(run.from, run.to))
      .join(""),
    trace.text,
  );
  assert.deepEqual(new Set(trace.runs().map((run) => run.author)), new Set(["suffix", "drafter", "target"]));
});

test("what was saved is said in words, and so is what was lost", () => {
  const stats = { ...recorded().done!.stats, rounds: 2, committed: 9, decode_ms: 100, plain_ms: 350 };
  assert.equal(
    savedBy(stats),
    "9 tokens in 2 steps of the big model, which alone needs a step for each: 250 ms saved.",
  );
  assert.match(savedBy({ ...stats, rounds: 1, plain_ms: 2000, decode_ms: 700 }), /in 1 step .+: 1\.3 s saved\.$/);
  assert.match(savedBy({ ...stats, plain_ms: 60 }), /: 40 ms lost\.$/);
  const untimed = savedBy({ ...stats, plain_ms: 0 });
  assert.equal(untimed, "9 tokens in 2 steps of the big model; alone it needs a step for each.");
  assert.equal(savedBy({ ...stats, rounds: 0 }), "");
});
