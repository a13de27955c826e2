import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { keyOf, Milestones } from "../src/milestones.ts";

test("what was reached becomes true once more behind the walkthrough's opening", async () => {
  const seen: string[] = [];
  const milestones = new Milestones(async (key, value) => void seen.push(`${key} ${value}`));
  milestones.reach("server");
  milestones.reach("server");
  await milestones.mark(async () => void seen.push("opened"));
  const key = keyOf("server");
  assert.deepEqual(seen, [`${key} true`, `${key} false`, "opened", `${key} true`]);
});

test("the walkthrough waits for these and no other keys", () => {
  const awaited = [...readFileSync("package.json", "utf8").matchAll(/"onContext:([\w.]+)"/g)].map(([, key]) => key);
  assert.deepEqual(awaited, (["server", "model", "suggestion"] as const).map(keyOf));
});
