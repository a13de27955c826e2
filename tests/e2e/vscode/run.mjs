// VS Code of one version against the real language server, daemon and starter pair.
// `node run.mjs OUT VERSION CODE_SERVER NODE|- VSIX [WORDS]`: pictures go to OUT; WORDS, a regular expression, choose scenarios.
import { mkdir, mkdtemp, rm, writeFile, cp } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CodeServer } from "./code_server.mjs";
import { Daemon } from "./daemon.mjs";
import { scenarios } from "./scenarios.mjs";
import { freePort } from "./waiting.mjs";
import { Window } from "./window.mjs";

const { chromium } = createRequire(new URL("../../../web/package.json", import.meta.url))("playwright-core");
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
const [out, version, dir, node, vsix, only = ""] = process.argv.slice(2);

const home = await mkdtemp(join(tmpdir(), "codespec-vscode-"));
const daemon = new Daemon(await freePort());
let server, browser;

/** What a scenario works with. */
class Ide {
  windows = [];

  constructor(context, server, daemon) {
    Object.assign(this, { context, server, daemon });
  }

  async open(files, at, settings) {
    this.server.settings(settings);
    const folder = join(this.server.home, "work", String(++Ide.folders));
    const window = await Window.open(this.context, this.server, folder, files, at);
    this.windows.push(window);
    return window;
  }

  /** A window with a place's text, its last letter still to be typed. */
  openAt({ before, after, key }, settings) {
    const start = before.slice(0, before.length - key.length);
    const lines = start.split("\n");
    return this.open({ "a.py": start + after }, ["a.py", lines.length, lines.at(-1).length + 1], settings);
  }

  shot(window, name) {
    return window.shot(out, name);
  }

  async close() {
    for (const window of this.windows) await window.close();
  }
}
Ide.folders = 0;

async function keep(ide, home, number) {
  for (const [index, window] of ide.windows.entries()) await ide.shot(window, `failed-${number}-${index + 1}`);
  await cp(join(home, "taps"), join(out, `${version}-taps`), { recursive: true });
  await writeFile(join(out, `${version}-daemon.log`), await ide.server.daemonLog(ide.daemon.port));
}

for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => end().then(() => process.exit(1)));
async function end() {
  await browser?.close();
  await server?.stop();
  daemon.kill();
  await rm(home, { recursive: true, force: true });
}

await mkdir(out, { recursive: true });
server = await CodeServer.start(version, { dir, node: node === "-" ? null : node }, vsix, home, daemon.port);
browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
const context = await browser.newContext({ viewport: { width: 1200, height: 760 } });
const failed = [];
try {
  for (const [index, [name, scenario]] of Object.entries(scenarios).entries()) {
    if (index > 0 && !new RegExp(only).test(name)) continue; // the first one starts the daemon
    const start = performance.now();
    const ide = new Ide(context, server, daemon);
    const error = await scenario(ide).then(
      () => null,
      (raised) => raised,
    );
    if (error) {
      failed.push(name);
      console.error(`vscode ${version}: FAILED: ${name}: see ${out}\n${error.stack}`);
      await keep(ide, home, failed.length);
    }
    await ide.close();
    if (!error) console.log(`vscode ${version}: ${name} (${((performance.now() - start) / 1000).toFixed(1)} s)`);
  }
} finally {
  await end();
}
process.exitCode = failed.length ? 1 : 0;
