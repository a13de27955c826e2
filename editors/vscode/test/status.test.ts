import assert from "node:assert/strict";
import { test } from "node:test";
import { barText, facts, type Figures, headline, type Known, moodOf } from "../src/status.ts";

const READY: Known = {
  process: { kind: "running", version: "0.1.0", fault: "" },
  told: { kind: "Normal", message: "", busy: false },
  figures: {},
  enabled: true,
};
const FIGURES: Figures = {
  daemon: {
    url: "http://127.0.0.1:8765",
    page: "http://127.0.0.1:8765/",
    state: "ready",
    message: "",
    version: "0.1.0",
    target: "codespec-starter",
    drafter: "codespec-starter-drafter",
  },
  last: { committed: 40, drafted: 44, accepted: 30, speedUp: 1.71 },
  counters: { shown: 8, accepted: 2, partlyAccepted: 1, acceptance: 0.375, lastMs: 43.1, medianMs: 8.4 },
};

test("every state has its mood", () => {
  const told = (kind: "Normal" | "Warning" | "Error" | "Inactive", busy = false): Known => ({
    ...READY,
    told: { kind, message: "why.", busy },
  });
  assert.equal(moodOf(READY), "Normal");
  assert.equal(moodOf(told("Normal", true)), "Busy");
  assert.equal(moodOf(told("Inactive")), "Inactive");
  assert.equal(moodOf(told("Error")), "Error");
  assert.equal(moodOf(told("Warning")), "Warning");
  assert.equal(moodOf({ ...told("Inactive"), enabled: false }), "Off");
  assert.equal(moodOf({ ...READY, process: { kind: "starting" } }), "Busy");
  assert.equal(moodOf({ ...READY, process: { kind: "missing", sentence: "x" }, enabled: false }), "Warning");
  assert.equal(moodOf({ ...READY, process: { kind: "failed", sentence: "x" } }), "Error");
});

test("the headline says why", () => {
  assert.equal(headline(READY), "Normal: codespec is ready.");
  const inactive: Known = { ...READY, told: { kind: "Inactive", message: "The file may hold secrets.", busy: false } };
  assert.equal(headline(inactive), "Inactive: The file may hold secrets.");
  assert.equal(
    headline({ ...READY, process: { kind: "failed", sentence: "It ended: see the log." } }),
    "Error: It ended: see the log.",
  );
  assert.equal(
    headline({ ...READY, process: { kind: "installing", step: "fetching torch" } }),
    "Busy: The server is being installed: fetching torch.",
  );
});

test("the bar has figures once there are any, and only while all is well", () => {
  assert.equal(barText(READY), "$(zap) codespec");
  assert.equal(barText({ ...READY, figures: FIGURES }), "$(zap) codespec · 38 % · 43 ms");
  assert.equal(barText({ ...READY, figures: FIGURES, enabled: false }), "$(circle-large-outline) codespec · off");
  const failed: Known = { ...READY, figures: FIGURES, told: { kind: "Error", message: "why.", busy: false } };
  assert.equal(barText(failed), "$(error) codespec");
});

test("a model on its way shows how far it is, whatever else there is", () => {
  const pulling = { model: "smollm2-135m", percent: 43 };
  assert.equal(barText({ ...READY, figures: FIGURES, pulling }), "$(cloud-download) codespec · 43 %");
  assert.equal(headline({ ...READY, pulling }), "Normal: codespec is ready. smollm2-135m is being fetched: 43 %.");
});

test("facts are those that are known", () => {
  assert.deepEqual(facts(READY), [["language server", "0.1.0"]]);
  assert.deepEqual(facts({ ...READY, figures: FIGURES }), [
    ["model", "codespec-starter"],
    ["drafter", "codespec-starter-drafter"],
    ["daemon", "http://127.0.0.1:8765, 0.1.0"],
    ["language server", "0.1.0"],
    ["taken", "38 % (3 of 8 suggestions)"],
    ["answers", "43 ms the last, 8.4 ms the median"],
    ["last draft", "30 of 44 tokens right, 1.7 × as fast as plain decoding"],
  ]);
  const absent: Figures = {
    daemon: { ...FIGURES.daemon!, state: "absent", target: "", drafter: "", version: "" },
    last: null,
  };
  assert.deepEqual(facts({ ...READY, figures: absent }), [
    ["daemon", "http://127.0.0.1:8765, not running"],
    ["language server", "0.1.0"],
  ]);
});
