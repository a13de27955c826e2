// The daemon that the language servers started for themselves, seen from outside: its process and what it has counted.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { pause, until } from "./waiting.mjs";

const PACE = new URL("../pace.py", import.meta.url).pathname;
const SETTLED = 300; // milliseconds without a new question: longer than an editor waits before it asks

export class Daemon {
  constructor(port) {
    this.port = port;
    this.url = `http://127.0.0.1:${port}`;
  }

  /** The processes that serve on its port; one is right. */
  get processes() {
    return readdirSync("/proc")
      .filter((name) => /^\d+$/.test(name))
      .filter((name) => this.#serves(name))
      .map(Number);
  }

  #serves(name) {
    try {
      const words = readFileSync(`/proc/${name}/cmdline`, "utf8").split("\0");
      const state = /^State:\s+(\w)/m.exec(readFileSync(`/proc/${name}/status`, "utf8"))[1];
      return state !== "Z" && words.includes("serve") && words[words.indexOf("--port") + 1] === String(this.port);
    } catch {
      return false; // it has ended meanwhile
    }
  }

  ready() {
    return until("the daemon is ready", async () => (await fetch(`${this.url}/health`)).status === 200, 120_000);
  }

  /** Sums of its metrics by name: counts() → (name, part of the labels) → number. */
  async counts() {
    const text = await (await fetch(`${this.url}/metrics`)).text();
    const rows = text.split("\n").filter((line) => line && !line.startsWith("#"));
    return (name, labels = "") =>
      rows
        .filter((row) => [`codespec:${name}{`, `codespec:${name} `].some((begin) => row.startsWith(begin)))
        .filter((row) => row.includes(labels))
        .reduce((sum, row) => sum + Number(row.slice(row.lastIndexOf(" "))), 0);
  }

  /** Questions that it was asked, and those that were taken back before they were done. */
  async asked() {
    const count = await this.counts();
    const requests = count("requests_total", 'kind="interactive"'); // a warm-up and a look ahead are none
    return { requests, cancelled: count("requests_cancelled_total"), running: count("num_requests_running") };
  }

  /** What it was asked, once it has nothing to do and a last question of the scenario before cannot arrive any more. */
  async settled() {
    let last = null;
    return until("the daemon has nothing to do", async () => {
      const before = last;
      await pause(SETTLED);
      last = await this.asked();
      return last.running === 0 && last.requests === before?.requests && last;
    });
  }

  /** What it answers to anybody who asks for these lines. */
  async complete(prefix, suffix, more = {}) {
    await this.ready();
    const body = JSON.stringify({
      prefix,
      suffix,
      language: "python",
      path: "a.py",
      document: `e2e-${prefix.length}`,
      version: 1,
      ...more,
    });
    const reply = await fetch(`${this.url}/v1/codespec/complete`, { method: "POST", body });
    const stream = await reply.text();
    if (!reply.ok || stream.includes("event: error")) throw new Error(`the daemon answered ${reply.status}: ${stream}`);
    const texts = stream.split("\n\n").filter((block) => block.startsWith("event: text\n"));
    return texts.map((block) => JSON.parse(block.slice(block.indexOf("data: ") + 6)).text).join("");
  }

  /** Takes the processor away from it most of the time, as a big target would need it; what it returns gives it back. */
  async slow() {
    const [slowed] = this.processes;
    const pace = spawn(process.env.PYTHON || "python3", [PACE, String(slowed)], { stdio: ["ignore", "pipe", "inherit"] });
    const ended = once(pace, "exit").then(([code]) => {
      throw new Error(`the daemon was not slowed: pace.py ended with ${code}`);
    });
    await Promise.race([once(pace.stdout, "data"), ended]);
    return () => {
      pace.kill("SIGTERM");
      signal(slowed, "SIGCONT");
    };
  }

  /** Stands it still; what it returns lets it go on. */
  halt() {
    const [halted] = this.processes;
    signal(halted, "SIGSTOP");
    return () => signal(halted, "SIGCONT");
  }

  kill(name = "SIGKILL") {
    for (const one of this.processes) signal(one, name);
  }
}

function signal(process_, name) {
  try {
    process.kill(process_, name);
  } catch {
    return; // it has ended meanwhile
  }
}
