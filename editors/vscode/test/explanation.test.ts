import assert from "node:assert/strict";
import { test } from "node:test";
import { explanation } from "../src/explanation.ts";

test("sentences first, then the figures that say something", () => {
  const page = explanation({
    sentences: ["The last answer took 43 ms."],
    finish_reason: "stop",
    cached_tokens: 120,
    new_tokens: 1,
    stats: {
      drafted: 44,
      accepted: 30,
      draft_ms: 1.25,
      rounds_none: 0,
      notes: [],
      by_source: { suffix: { drafted: 16, accepted: 4 } },
      ended: "",
    },
  });
  assert.equal(
    page,
    `The last completion

The last answer took 43 ms.

finish reason   stop
cached tokens   120
new tokens      1
drafted         44
accepted        30
draft ms        1.3
by source       suffix 4 of 16
`,
  );
});

test("before the first completion there are no figures", () => {
  const page = explanation({ sentences: ["The daemon has completed nothing yet."] });
  assert.equal(page, "The last completion\n\nThe daemon has completed nothing yet.\n");
});
