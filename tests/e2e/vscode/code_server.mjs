// One code-server with the extension in it: a folder of its own for everything, the user's settings, its end.
import { spawn, spawnSync } from "node:child_process";
import { createWriteStream, mkdirSync, writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { freePort, until } from "./waiting.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const QUIET = {
  "security.workspace.trust.enabled": false,
  "workbench.startupEditor": "none",
  "telemetry.telemetryLevel": "off",
  "update.mode": "none",
  "extensions.autoCheckUpdates": false,
  "extensions.autoUpdate": false,
  "extensions.ignoreRecommendations": true,
  "git.enabled": false,
  "files.autoSave": "off",
  "remote.autoForwardPorts": false,
  "chat.disableAIFeatures": true,
  "workbench.secondarySideBar.defaultVisibility": "hidden",
  "editor.minimap.enabled": false,
  "editor.accessibilitySupport": "off",
};
// In 1.100 the list of words comes up beside a suggestion, and takes Tab; 1.139 holds it back by itself.
const NO_LIST = { "editor.quickSuggestions": { other: "off", comments: "off", strings: "off" } };

export class CodeServer {
  /** Installs the extension and starts; `install` is {dir, node}, `daemonPort` where the daemon shall be. */
  static async start(version, install, vsix, home, daemonPort) {
    const server = new CodeServer();
    Object.assign(server, {
      version,
      home,
      taps: join(home, "taps"),
      entry: join(install.dir, "node_modules/code-server/out/node/entry.js"),
    });
    for (const folder of ["taps", "ext", "data/User", "data/Machine", "home"])
      mkdirSync(join(home, folder), { recursive: true });
    server.node = install.node ? join(install.node, "bin/node") : process.execPath;
    server.env = {
      ...process.env,
      // The tests ask for each text before the editor does: copied, it would be there at once.
      CODESPEC_PROPOSERS: "prediction",
      HOME: join(home, "home"),
      PATH: `${dirname(server.node)}:${process.env.PATH}`,
      EXTENSIONS_GALLERY: "{}", // no look-ups outside
      CODESPEC_MODEL: "starter", // the same pair on every machine
      PIP_NO_INDEX: "1", // no model is fetched
      E2E_TAPS: server.taps,
      E2E_SERVER: process.env.E2E_SERVER ?? join(here, "../../../.venv/bin/codespec"),
    };
    for (const name of ["STATE", "CACHE", "CONFIG", "DATA"]) server.env[`XDG_${name}_HOME`] = join(home, "home", name);
    const user = version.startsWith("4.100") ? { ...QUIET, ...NO_LIST } : QUIET;
    writeFileSync(join(home, "data/User/settings.json"), JSON.stringify(user));
    server.always = { "codespec.command": join(here, "tap.mjs"), "codespec.url": `http://127.0.0.1:${daemonPort}` };
    server.settings();
    server.#install(vsix);
    await server.#listen();
    return server;
  }

  /** The machine's settings, where a remote window has what may name a program: those that hold always, and these. */
  settings(more = {}) {
    const text = JSON.stringify({ ...this.always, ...more }, null, 1);
    if (text !== this.text) writeFileSync(join(this.home, "data/Machine/settings.json"), text);
    this.text = text;
  }

  #folders() {
    return ["--user-data-dir", join(this.home, "data"), "--extensions-dir", join(this.home, "ext")];
  }

  #install(vsix) {
    const args = [this.entry, ...this.#folders(), "--install-extension", vsix];
    const done = spawnSync(this.node, args, { env: this.env, encoding: "utf8" });
    if (done.status !== 0) throw new Error(`the extension was not installed: ${done.stdout}${done.stderr}`);
  }

  async #listen() {
    const port = await freePort();
    this.address = `127.0.0.1:${port}`;
    const args = ["--bind-addr", this.address, "--auth", "none", "--config", "/dev/null", ...this.#folders()];
    const quiet = ["--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"];
    this.child = spawn(this.node, [this.entry, ...args, ...quiet], {
      env: this.env,
      detached: true,
      stdio: ["ignore", "pipe", "pipe"],
    });
    const log = createWriteStream(join(this.home, "code-server.log"));
    for (const stream of [this.child.stdout, this.child.stderr]) stream.pipe(log, { end: false });
    this.ended = new Promise((resolve) => this.child.once("exit", resolve));
    await until("code-server answers", async () => (await fetch(`http://${this.address}/healthz`)).ok);
  }

  /** The daemon's own words. */
  daemonLog(port) {
    return readFile(join(this.env.XDG_STATE_HOME, "codespec", `daemon-${port}.log`), "utf8").catch(() => "");
  }

  /** Ends the whole group: its children would stay for a while. */
  async stop() {
    process.kill(-this.child.pid, "SIGTERM");
    await this.ended;
  }
}
