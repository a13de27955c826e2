import assert from "node:assert/strict";
import { test } from "node:test";
import { findProgram, findServer, inEnvironment, type Machine, readyMark } from "../src/find_server.ts";

const OWN = "/store/server";

function unix(programs: readonly string[], env: Record<string, string> = {}): Machine {
  const has = (path: string): boolean => programs.includes(path);
  return {
    windows: false,
    home: "/home/me",
    env: { PATH: "/usr/bin:bin::/opt/bin", ...env },
    isProgram: has,
    exists: has,
  };
}

function windows(programs: readonly string[]): Machine {
  const has = (path: string): boolean => programs.includes(path);
  return { windows: true, home: "C:\\Users\\me", env: { Path: "C:\\Windows;D:\\tools" }, isProgram: has, exists: has };
}

test("the setting comes first, then PATH, then the environment of our own", () => {
  const own = [`${OWN}/bin/codespec`, `${OWN}/codespec-ready`];
  const everywhere = unix(["/somewhere/codespec", "/opt/bin/codespec", ...own]);
  assert.deepEqual(findServer("/somewhere/codespec", OWN, everywhere), { kind: "found", path: "/somewhere/codespec" });
  assert.deepEqual(findServer("", OWN, everywhere), { kind: "found", path: "/opt/bin/codespec" });
  assert.deepEqual(findServer(" ", OWN, unix(own)), { kind: "found", path: `${OWN}/bin/codespec` });
  assert.deepEqual(findServer("", OWN, unix([])), { kind: "missing" });
});

test("a setting that leads nowhere is told, whatever else is there", () => {
  const found = findServer("/gone/codespec", OWN, unix(["/usr/bin/codespec"]));
  assert.equal(found.kind, "wrong");
  assert.match(
    found.kind === "wrong" ? found.sentence : "",
    /^codespec\.command is \/gone\/codespec, .*: correct the setting/,
  );
});

test("an environment that is not complete is none", () => {
  assert.deepEqual(findServer("", OWN, unix([`${OWN}/bin/codespec`])), { kind: "missing" });
});

test("nothing depends on the folder that is open", () => {
  const machine = unix(["bin/codespec", "codespec", "./codespec", "tools/codespec"]);
  assert.equal(findProgram("codespec", machine), undefined);
  assert.equal(findProgram("tools/codespec", machine), undefined);
  assert.equal(findProgram("./codespec", machine), undefined);
});

test("a name is looked up on PATH in its order, ~ is home", () => {
  assert.equal(findProgram("spec", unix(["/opt/bin/spec", "/usr/bin/spec"])), "/usr/bin/spec");
  assert.equal(findProgram("~/bin/codespec", unix(["/home/me/bin/codespec"])), "/home/me/bin/codespec");
});

test("Windows: Scripts, .exe, backslashes and Path", () => {
  const own = "C:\\store\\server";
  assert.equal(inEnvironment(own, "codespec", true), "C:\\store\\server\\Scripts\\codespec.exe");
  assert.equal(readyMark(own, true), "C:\\store\\server\\codespec-ready");
  const programs = [inEnvironment(own, "codespec", true), readyMark(own, true)];
  assert.deepEqual(findServer("", own, windows(programs)), { kind: "found", path: programs[0] });
  assert.equal(findProgram("codespec", windows(["D:\\tools\\codespec.exe"])), "D:\\tools\\codespec.exe");
  assert.equal(
    findProgram("~\\x\\codespec", windows(["C:\\Users\\me\\x\\codespec.exe"])),
    "C:\\Users\\me\\x\\codespec.exe",
  );
  assert.equal(findProgram("D:\\a b\\codespec.EXE", windows(["D:\\a b\\codespec.EXE"])), "D:\\a b\\codespec.EXE");
});
