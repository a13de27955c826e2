import assert from "node:assert/strict";
import { test } from "node:test";
import { EditorState, type TransactionSpec } from "@codemirror/state";
import { ghostField, ghostRest, offer, restRuns } from "../src/ghost.ts";
import type { Run } from "../src/trace.ts";

const RUNS: Run[] = [
  { from: 0, to: 3, author: "suffix", round: 0 },
  { from: 3, to: 7, author: "target", round: 0 },
];

/** `a = ` with a ghost text after it, and a second line. */
function shown(text = "foo(bar", ended = true): EditorState {
  const state = EditorState.create({ doc: "a = \nb", selection: { anchor: 4 }, extensions: [ghostField] });
  return after(state, { effects: offer.of({ anchor: 4, text, runs: RUNS, ended }) });
}

function after(state: EditorState, ...specs: TransactionSpec[]): EditorState {
  return specs.reduce((now, spec) => now.update(spec).state, state);
}

function type(text: string, at = 4): TransactionSpec {
  return { changes: { from: at, insert: text }, selection: { anchor: at + text.length } };
}

test("typing along keeps it, key by key and all at once", () => {
  assert.equal(ghostRest(shown()), "foo(bar");
  assert.equal(ghostRest(after(shown(), type("f"), type("o", 5), type("o", 6))), "(bar");
  assert.equal(ghostRest(after(shown(), type("foo("))), "bar");
});

test("taking back what was typed along brings it back", () => {
  const back = after(shown(), type("foo"), { changes: { from: 5, to: 7 }, selection: { anchor: 5 } });
  assert.equal(ghostRest(back), "oo(bar");
});

test("what is left keeps its authors", () => {
  const ghost = after(shown(), type("fo")).field(ghostField)!;
  assert.deepEqual(
    restRuns(ghost).map(({ from, to, author }) => [from, to, author]),
    [
      [0, 1, "suffix"],
      [1, 5, "target"],
    ],
  );
});

test("anything else ends it", () => {
  const others: Record<string, TransactionSpec> = {
    "another letter": type("g"),
    "an edit before": { changes: { from: 0, insert: "x" } },
    "an edit behind": { changes: { from: 6, insert: "x" } },
    "the cursor elsewhere": { selection: { anchor: 1 } },
    "a selection": { selection: { anchor: 4, head: 5 } },
    "Backspace beyond its place": { changes: { from: 3, to: 4 }, selection: { anchor: 3 } },
    "a dismissal": { effects: offer.of(null) },
  };
  for (const [name, spec] of Object.entries(others)) {
    assert.equal(after(shown(), spec).field(ghostField), null, name);
  }
});

test("an offer for another place is not shown", () => {
  const moved = after(shown("", false), type("zz"));
  assert.equal(
    ghostRest(after(moved, { effects: offer.of({ anchor: 4, text: "foo", runs: RUNS, ended: false }) })),
    "",
  );
  assert.equal(moved.field(ghostField)?.rest, "");
});

test("who types faster than the stream sees the rest when it comes", () => {
  const ahead = after(shown("fo", false), type("foo"));
  assert.equal(ahead.field(ghostField)?.rest, "");
  assert.equal(
    ghostRest(after(ahead, { effects: offer.of({ anchor: 4, text: "foo(b", runs: RUNS, ended: false }) })),
    "(b",
  );
});
