// Bundles the extension into dist/extension.js; `--tests` bundles the tests into .tests instead, `--server` puts the
// server that the extension carries into server/. Uses esbuild, and Python to build the server.
import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { readdir, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const SHARED = {
  absWorkingDir: here,
  bundle: true,
  charset: "utf8",
  logLevel: "warning",
  platform: "node",
  target: "node20",
};

async function buildExtension() {
  await rm(join(here, "dist"), { recursive: true, force: true });
  await build({
    ...SHARED,
    entryPoints: ["src/extension.ts"],
    outfile: "dist/extension.js",
    external: ["vscode"],
    format: "cjs",
    minify: true,
    legalComments: "eof",
  });
}

async function buildTests() {
  await rm(join(here, ".tests"), { recursive: true, force: true });
  const names = (await readdir(join(here, "test"))).filter((name) => name.endsWith(".test.ts"));
  await build({
    ...SHARED,
    entryPoints: names.map((name) => join("test", name)),
    outdir: ".tests",
    outExtension: { ".js": ".mjs" },
    format: "esm",
  });
}

function packServer() {
  const args = ["-m", "tools.pack_server", join(here, "server")];
  const done = spawnSync(process.env.PYTHON ?? "python3", args, { cwd: join(here, "../.."), stdio: "inherit" });
  if (done.error) console.error(`build: ${done.error.message}: name a Python 3.11 or newer, PYTHON=… npm run package.`);
  process.exitCode = done.status ?? 1;
}

if (process.argv.includes("--server")) packServer();
else await (process.argv.includes("--tests") ? buildTests() : buildExtension());
