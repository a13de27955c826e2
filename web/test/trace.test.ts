import assert from "node:assert/strict";
import { test } from "node:test";
import { Tally } from "../src/figures.ts";
import { inkAndBlank, rejected, Trace } from "../src/trace.ts";
import type { Ask, CompletionEvent, Round } from "../src/wire.ts";

const EMPTY: Round = {
  choice: 0,
  source: "",
  drafted: 0,
  accepted: 0,
  draft: "",
  accepted_text: "",
  target_text: "",
  reason: "",
  context: "unknown",
};

function round(values: Partial<Round>): CompletionEvent {
  return { name: "round", round: { ...EMPTY, ...values } };
}

const ASK: Ask = {
  document: "",
  version: 1,
  language: "",
  path: "",
  prefix: "",
  prefix_offset: 0,
  suffix: "",
  trigger: "",
  shape: "raw",
  max_tokens: 16,
};

function grown(...events: CompletionEvent[]): Trace {
  const trace = new Trace(100, ASK);
  events.forEach((event, place) => trace.add(event, 110 + place));
  return trace;
}

function authors(trace: Trace, from = 0): string[] {
  return trace.runs(from).map((run) => `${run.author}${run.round} ${trace.text.slice(run.from, run.to)}`);
}

const ROUNDS = [
  round({ source: "suffix", drafted: 3, accepted: 2, draft: "ab cd ef", accepted_text: "ab cd", target_text: "!" }),
  round({ target_text: "??" }),
  round({ source: "draft_model", drafted: 1, accepted: 1, draft: "xy", accepted_text: "xy", target_text: "z" }),
];

test("every character has an author, in order", () => {
  const trace = grown(...ROUNDS, { name: "text", text: "ab cd!??xyz" });
  assert.deepEqual(authors(trace), ["suffix0 ab cd", "target0 !", "target1 ??", "drafter2 xy", "target2 z"]);
  assert.deepEqual(authors(trace, 4), ["suffix0 d", "target0 !", "target1 ??", "drafter2 xy", "target2 z"]);
});

test("what the daemon keeps back or cut away is not shown", () => {
  for (const [length, shown] of [
    [0, []],
    [3, ["suffix0 ab "]],
    [6, ["suffix0 ab cd", "target0 !"]],
  ] as const) {
    assert.deepEqual(authors(grown(...ROUNDS, { name: "text", text: "ab cd!??xyz".slice(0, length) })), shown);
  }
});

test("text without rounds is nobody's that we know", () => {
  assert.deepEqual(authors(grown({ name: "text", text: "ready" })), ["untold-1 ready"]);
  assert.deepEqual(authors(grown(ROUNDS[1]!, { name: "text", text: "??!" })), ["target0 ??", "untold-1 !"]);
});

test("runs cover the text without gaps for any cut", () => {
  const text = "ab cd!??xyz";
  for (let to = 0; to <= text.length; to++) {
    for (let from = 0; from <= to; from++) {
      const trace = grown(...ROUNDS, { name: "text", text: text.slice(0, to) });
      const runs = trace.runs(from);
      assert.equal(runs.map((run) => text.slice(run.from, run.to)).join(""), text.slice(from, to));
    }
  }
});

test("a round knows when it came and what was refused", () => {
  const trace = grown(...ROUNDS);
  assert.deepEqual(
    trace.rounds.map((one) => one.at),
    [10, 11, 12],
  );
  assert.equal(rejected(trace.rounds[0]!), " ef");
  assert.equal(rejected(trace.rounds[2]!), "");
  assert.deepEqual(
    trace.textBefore(2).map((run) => trace.spelled(run)),
    ["ab cd", "!", "??"],
  );
});

test("a text in parts is the text", () => {
  for (const [text, parts] of Object.entries({
    "": [],
    " is a": [" ", "is a"],
    "  a b\n\n    c ": ["  ", "a b", "\n\n    ", "c "],
    "\n": ["\n"],
  })) {
    assert.deepEqual(inkAndBlank(text), parts);
    assert.equal(inkAndBlank(text).join(""), text);
  }
});

test("a tally adds, sorts, and leaves out what drafted nothing", () => {
  const tally = new Tally();
  tally.add("indent", { drafted: 2, accepted: 1 });
  tally.add("string", { drafted: 0, accepted: 0 });
  tally.add("comment", { drafted: 3, accepted: 0 });
  tally.add("indent", { drafted: 2, accepted: 2 });
  assert.deepEqual(tally.sorted(), [
    ["indent", { drafted: 4, accepted: 3 }],
    ["comment", { drafted: 3, accepted: 0 }],
  ]);
});
