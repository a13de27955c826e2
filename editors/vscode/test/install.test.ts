import assert from "node:assert/strict";
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { findServer } from "../src/find_server.ts";
import { install, lastWords, type Plan, stepOf } from "../src/install.ts";
import { machine } from "../src/machine.ts";
import { candidates } from "../src/python.ts";
import { Cancelled, run } from "../src/run.ts";
import { findSource, type Source } from "../src/source.ts";

let folder = "";
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "codespec-"));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

/** A Python that makes an environment with a pip and a codespec of the script's choice. */
async function python(pip: string, codespec = "exit 0"): Promise<string> {
  const path = join(folder, "python3");
  const inner = "#!/bin/sh\\n%s\\n";
  await writeFile(
    path,
    `#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 9
mkdir -p "$3/bin"
printf '${inner}' '${pip}' > "$3/bin/python"
printf '${inner}' '${codespec}' > "$3/bin/codespec"
chmod +x "$3/bin/python" "$3/bin/codespec"
`,
  );
  await chmod(path, 0o755);
  return path;
}

async function plan(pip: string, codespec?: string): Promise<Plan & { steps: string[]; stop: AbortController }> {
  const steps: string[] = [];
  const stop = new AbortController();
  const environment = join(folder, "server");
  const told = { signal: stop.signal, log: () => {}, step: (text: string) => void steps.push(text) };
  const source: Source = { kind: "path", path: "/x[torch]" };
  return { python: await python(pip, codespec), environment, source, ...told, steps, stop };
}

const left = async (): Promise<string[]> => (await readdir(folder)).sort();

test("what was installed is found from then on", async () => {
  const wanted = await plan('echo "Collecting torch<3,>=2.6"; echo "$@" > "$(dirname "$0")/said"');
  assert.equal(await install(wanted), join(folder, "server/bin/codespec"));
  assert.deepEqual(findServer("", wanted.environment, { ...machine, env: {} }), {
    kind: "found",
    path: join(folder, "server/bin/codespec"),
  });
  assert.match(await readFile(join(folder, "server/bin/said"), "utf8"), /^-m pip install .* \/x\[torch\]\n$/);
  assert.deepEqual(wanted.steps, ["making a Python environment", "looking for torch", "trying it"]);
  assert.deepEqual(await left(), ["python3", "server"]);
});

test("a checkout brings its kernels, its weights and --upstream along", async () => {
  const checkout = join(folder, "checkout");
  const more = [join(checkout, "native"), join(checkout, "weights"), join(checkout, "plugins", "upstream")];
  for (const place of more) {
    await mkdir(place, { recursive: true });
    await writeFile(join(place, "pyproject.toml"), "");
  }
  const wanted = await plan('echo "$@" > "$(dirname "$0")/said"');
  await install({ ...wanted, source: { kind: "path", path: `${checkout}[torch]` } });
  const said = await readFile(join(folder, "server/bin/said"), "utf8");
  assert.ok(said.endsWith(` ${checkout}[torch] ${more.join(" ")}\n`), said);
});

const CARRIED: Source = { kind: "carried", wheels: ["/s/c.whl", "/s/w.whl"], requirements: "/s/base.txt", folder: "/s" };
const HASHED = "--require-hashes --no-deps --only-binary :all: -r";
/** What pip was told, without what it is always told. */
const pipWords = async (): Promise<string[]> =>
  (await readFile(join(folder, "server/bin/said"), "utf8"))
    .trim()
    .split("\n")
    .map((line) => line.replace(/^-m pip | --(disable-pip-version-check|no-input|progress-bar off)/g, ""));

test("what the extension carries is installed by its hashes, and no index is asked for codespec", async () => {
  const wanted = { ...(await plan('echo "$@" >> "$(dirname "$0")/said"')), source: CARRIED };
  await install(wanted);
  const ours = "install --no-deps --no-index --find-links /s /s/c.whl /s/w.whl codespec_native";
  const words = [`install ${HASHED} /s/base.txt`, ours, "check"];
  assert.deepEqual(await pipWords(), words);
  assert.equal(await readFile(join(folder, "server/codespec-ready"), "utf8"), "/s/c.whl\n");
});

test("a machine for which no kernels are carried is told so", async () => {
  const none = "ERROR: No matching distribution found for codespec_native";
  const pip = `case "$*" in *codespec_native) echo "${none}"; exit 1;; esac`;
  await assert.rejects(install({ ...(await plan(pip)), source: CARRIED }), {
    message: "The extension carries no kernels for this machine: name a checkout (codespec.installFrom), where they are compiled.",
  });
  assert.deepEqual(await left(), ["python3"]);
});

test("what is not complete is no installation", async () => {
  const pip = 'case "$3" in check) echo "aiohttp 3 requires yarl, which is not installed."; exit 1;; esac';
  await assert.rejects(install({ ...(await plan(pip)), source: CARRIED }), {
    message: "What was installed is not complete (aiohttp 3 requires yarl, which is not installed): see the log.",
  });
  assert.deepEqual(await left(), ["python3"]);
});

// `npm run package` made the folder; pip, Python and the index are real.
const carried = process.env["CODESPEC_CARRIED"];
test("what was packed installs and runs", { skip: !carried, timeout: 600_000 }, async () => {
  const source = findSource("", "", false, { folder: carried ?? "", names: await readdir(carried ?? "") });
  const [python] = candidates("", machine);
  const program = await install({ ...(await plan("")), python: python ?? "", source, log: console.log });
  const { code, lines } = await run(program, ["serve", "--help"], { cwd: folder });
  assert.deepEqual([code, lines[0]?.startsWith("usage: codespec serve")], [0, true]);
});

test("pip's own last word is told, and nothing half made is left", async () => {
  const wanted = await plan('echo "ERROR: No matching distribution found for x" >&2; exit 1');
  await assert.rejects(install(wanted), {
    message: "pip can't install the server (No matching distribution found for x): see the log.",
  });
  assert.deepEqual(await left(), ["python3"]);
});

test("what does not run is no installation", async () => {
  await assert.rejects(install(await plan("exit 0", "echo broken; exit 3")), {
    message: "What was installed does not run (broken): see the log.",
  });
  assert.deepEqual(await left(), ["python3"]);
});

// Its end is seen only when nobody holds its output any more: a child that lived on would hold it for a minute.
test("cancelling ends pip with its children, at once", { timeout: 30_000 }, async () => {
  const wanted = await plan('echo "Collecting x"; sleep 60 & wait');
  const installing = install({ ...wanted, step: (text) => void (text === "looking for x" && wanted.stop.abort()) });
  await assert.rejects(installing, Cancelled);
  assert.deepEqual(await left(), ["python3"]);
});

test("two windows do not fill one folder; a lock whose window is gone is no lock", async () => {
  const wanted = await plan("exit 0");
  await writeFile(join(folder, "server.lock"), String(process.ppid));
  await assert.rejects(install(wanted), { message: /^Another window is installing the server: wait/ });
  await writeFile(join(folder, "server.lock"), "2147483646");
  assert.ok(await install(wanted));
});

test("pip's lines become words for the user", () => {
  assert.equal(stepOf("Collecting aiohttp<4,>=3.14 (from codespec)"), "looking for aiohttp");
  assert.equal(
    stepOf("  Downloading torch-2.13.0-cp311-cp311-linux_x86_64.whl (190.3 MB)"),
    "fetching torch (190.3 MB)",
  );
  assert.equal(stepOf("Installing collected packages: a, b"), "unpacking");
  assert.equal(stepOf("Requirement already satisfied: x"), "");
});

test("the last error wins over what follows it", () => {
  assert.equal(lastWords(["Collecting x", "ERROR: first", "error: second.", "[notice] a new pip"]), "second");
  assert.equal(lastWords(["nothing", "No module named pip"]), "No module named pip");
  assert.equal(lastWords([]), "");
});
