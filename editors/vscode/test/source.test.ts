import assert from "node:assert/strict";
import { test } from "node:test";
import { expandHome, findSource, named, type Source, SourceError } from "../src/source.ts";

const WHEELS = ["codespec", "codespec_weights", "codespec_upstream"].map((name) => `${name}-0.1.0-py3-none-any.whl`);
const KERNELS = "codespec_native-0.1.0-py3-none-win_amd64.whl";
const NAMES = [...WHEELS, KERNELS, "requirements-base.txt"];

function source(setting: string, names: readonly string[] = NAMES, windows = false): Source {
  return findSource(setting, windows ? "C:\\Users\\me" : "/home/me", windows, { folder: "/ext/server", names });
}

test("empty: what the extension carries", () => {
  assert.deepEqual(source(" "), {
    kind: "carried",
    wheels: WHEELS.map((name) => `/ext/server/${name}`),
    requirements: "/ext/server/requirements-base.txt",
    folder: "/ext/server",
  });
});

test("a checkout's or a wheel's path is taken as it is", () => {
  assert.equal(named(source("~/code/codespec[torch]")), "/home/me/code/codespec[torch]");
  assert.equal(named(source("/a/codespec-0.1.0-py3-none-any.whl")), "/a/codespec-0.1.0-py3-none-any.whl");
  assert.equal(named(source("D:\\code\\codespec[torch]", NAMES, true)), "D:\\code\\codespec[torch]");
});

// Whoever registers such a name, or owns such an address, would run code here.
test("a name, an address, a relative path or a flag is refused", () => {
  for (const setting of ["codespec", "codespec[torch]", "codespec==1", "git+https://x/y", "./codespec", "--pre /a"])
    assert.throws(() => source(setting), { message: /which is not an absolute path: name a checkout of codespec/ });
  assert.throws(() => source("codespec[torch]", NAMES, true), SourceError);
});

test("a build that carries nothing, half of it or two wheels says so", () => {
  const without = (index: number): string[] => NAMES.filter((_, other) => other !== index);
  for (const names of [[], ...NAMES.map((_, index) => without(index)), [...NAMES, "codespec-0.2.0-py3-none-any.whl"]])
    assert.throws(() => source("", names), { message: /^This build of the extension carries no server: build it/ });
});

test("~ is home, elsewhere a path stays as it is", () => {
  assert.equal(expandHome("~/code/codespec[torch]", "/home/$&"), "/home/$&/code/codespec[torch]");
  assert.equal(expandHome(" /code~/x ", "/home/me"), "/code~/x");
});
