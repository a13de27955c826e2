// Bundles the page into codespec/server/page: one script, one style sheet, the page itself, and the licences of the
// bundled packages. The result depends only on the lock file and the sources. `--out DIR` writes elsewhere,
// `--tests` bundles the tests into .tests instead.
import { build } from "esbuild";
import { copyFile, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const given = process.argv.indexOf("--out");
const out = given < 0 ? join(here, "../codespec/server/page") : process.argv[given + 1];
const SHARED = { absWorkingDir: here, bundle: true, charset: "utf8", logLevel: "warning", loader: { ".txt": "text" } };

async function buildPage() {
  await mkdir(out, { recursive: true });
  const { metafile } = await build({
    ...SHARED,
    entryPoints: { codespec: "src/main.ts" },
    outdir: out,
    format: "esm",
    target: ["es2022", "chrome110", "firefox115", "safari16.4"],
    minify: true,
    legalComments: "none",
    metafile: true,
  });
  await build({ ...SHARED, entryPoints: { codespec: "page/style.css" }, outdir: out, minify: true });
  for (const name of ["index.html", "icon.svg"]) await copyFile(join(here, "page", name), join(out, name));
  await writeFile(join(out, "licences.txt"), await licences(Object.keys(metafile.inputs)));
}

/** Returns the licence texts of all packages that have a file in the bundle, by name. */
async function licences(inputs) {
  const names = new Set();
  for (const input of inputs) {
    const found = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (found) names.add(found[1]);
  }
  const parts = ["The page of codespec contains these packages.\n"];
  for (const name of [...names].sort()) {
    const folder = join(here, "node_modules", name);
    const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).find((entry) => /^licen[cs]e/i.test(entry));
    if (!file) throw new Error(`${name} has no licence file: say where its licence is, or do without it.`);
    parts.push(`${name} ${version} (${license})\n\n${(await readFile(join(folder, file), "utf8")).trim()}\n`);
  }
  return parts.join(`\n${"-".repeat(80)}\n\n`);
}

async function buildTests() {
  await rm(join(here, ".tests"), { recursive: true, force: true });
  const names = (await readdir(join(here, "test"))).filter((name) => name.endsWith(".test.ts"));
  await build({
    ...SHARED,
    entryPoints: names.map((name) => join(here, "test", name)),
    outdir: join(here, ".tests"),
    outExtension: { ".js": ".mjs" },
    format: "esm",
    platform: "node",
  });
}

await (process.argv.includes("--tests") ? buildTests() : buildPage());
