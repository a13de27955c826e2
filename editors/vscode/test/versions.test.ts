import assert from "node:assert/strict";
import { test } from "node:test";
import { headline, type Known, moodOf } from "../src/status.ts";
import { versionFault } from "../src/versions.ts";

const PATH = "/opt/bin/codespec";

test("one version says nothing, two say one sentence with the fix", () => {
  assert.equal(versionFault("0.2.0", { version: "0.2.0", path: PATH, own: false }), "");
  assert.equal(
    versionFault("0.2.0", { version: "0.1.0", path: "/store/server/bin/codespec", own: true }),
    "The extension is codespec 0.2.0, its language server (/store/server/bin/codespec) 0.1.0: " +
      "run “codespec: Install the Server”.",
  );
  const elsewhere = versionFault("0.2.0", { version: "", path: PATH, own: false });
  assert.match(elsewhere, /\/opt\/bin\/codespec\) an unknown one: install one version of both, or empty codespec\.command/);
});

test("the status bar warns of it, unless the server has something worse to say", () => {
  const fault = versionFault("0.2.0", { version: "0.1.0", path: PATH, own: false });
  const known: Known = {
    process: { kind: "running", version: "0.1.0", fault },
    told: { kind: "Normal", message: "A better model is there.", busy: false },
    figures: {},
    enabled: true,
  };
  assert.deepEqual([moodOf(known), headline(known)], ["Warning", `Warning: ${fault}`]);
  const worse: Known = { ...known, told: { kind: "Error", message: "No disk.", busy: false } };
  assert.equal(headline(worse), "Error: No disk.");
});
