import assert from "node:assert/strict";
import { test } from "node:test";
import type { Machine } from "../src/find_server.ts";
import { candidates, choosePython, isNewEnough, parseVersion } from "../src/python.ts";

function having(...programs: string[]): Machine {
  const has = (path: string): boolean => programs.includes(path);
  return { windows: false, home: "/home/me", env: { PATH: "/usr/bin:/opt/bin" }, isProgram: has, exists: has };
}

const said = (answers: Record<string, [number, string]>) => async (path: string) => {
  const [code, text] = answers[path] ?? [-1, "spawn ENOENT"];
  return { code, text };
};

test("versions are read as Python prints them", () => {
  assert.deepEqual(parseVersion("3.11.2\n"), [3, 11, 2]);
  assert.deepEqual(parseVersion("Python 3.14.0rc1"), [3, 14, 0]);
  assert.deepEqual(parseVersion("some warning\n3.12.1\nTraceback"), [3, 12, 1]);
  assert.equal(parseVersion("spawn python3 ENOENT"), null);
  assert.equal(parseVersion(""), null);
});

test("3.11 is new enough, and numbers are compared as numbers", () => {
  assert.ok(isNewEnough([3, 11, 0]) && isNewEnough([3, 100, 0]) && isNewEnough([4, 0, 0]));
  assert.ok(!isNewEnough([3, 10, 9]) && !isNewEnough([3, 9, 20]) && !isNewEnough([2, 99, 0]));
});

test("the setting alone is tried, else each name once, in the order of likelihood", () => {
  assert.deepEqual(candidates("/my/python", having("/my/python", "/usr/bin/python3")), ["/my/python"]);
  const machine = having("/usr/bin/python3", "/opt/bin/python3", "/opt/bin/python3.12");
  assert.deepEqual(candidates("", machine), ["/usr/bin/python3", "/opt/bin/python3.12"]);
});

test("no Python is one sentence with the fix", () => {
  assert.throws(() => candidates("", having()), { message: /^There is no Python here: install Python 3\.11 or newer/ });
  assert.throws(() => candidates("/gone", having("/usr/bin/python3")), {
    message: /^codespec\.python is \/gone, .*: correct/,
  });
});

test("the first that can be used is taken", async () => {
  const ask = said({
    "/a": [0, "3.9.2"],
    "/b": [1, "3.12.0\nNo module named ensurepip"],
    "/c": [0, "3.11.4"],
    "/d": [0, "3.13.0"],
  });
  assert.equal(await choosePython(["/x", "/a", "/b", "/c", "/d"], ask), "/c");
});

test("where none can be used, the sentence says what is nearest to a fix", async () => {
  const ask = said({ "/a": [0, "3.9.2"], "/b": [1, "3.12.0\nNo module named ensurepip"] });
  await assert.rejects(choosePython(["/a"], ask), {
    message: /^\/a is Python 3\.9\.2, which is too old: install Python 3\.11/,
  });
  await assert.rejects(choosePython(["/a", "/b"], ask), { message: /^\/b can't make environments: .*python3-venv/ });
  await assert.rejects(choosePython(["/x"], ask), { message: /^\/x does not run: install Python 3\.11/ });
});
