// What went between one window's extension and its language server, read from the tap's record.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { until } from "./waiting.mjs";

const ASK = "textDocument/inlineCompletion";

export class Wire {
  /** The newest record of a language server that was started for `folder`; null while there is none. */
  static find(taps, folder) {
    const found = readdirSync(taps)
      .filter((name) => name.endsWith(".jsonl"))
      .map((name) => new Wire(join(taps, name)))
      .filter((wire) => wire.folder === folder)
      .sort((a, b) => a.lines[0].at - b.lines[0].at);
    return found.at(-1) ?? null;
  }

  constructor(file) {
    this.file = file;
  }

  get lines() {
    const text = readFileSync(this.file, "utf8");
    const whole = text.slice(0, text.lastIndexOf("\n") + 1);
    return whole
      .split("\n")
      .filter(Boolean)
      .map((line) => JSON.parse(line));
  }

  get folder() {
    const hello = this.lines.find(({ message }) => message.method === "initialize")?.message;
    const uri = hello?.params.workspaceFolders?.[0]?.uri ?? hello?.params.rootUri;
    return uri ? decodeURIComponent(new URL(uri).pathname) : null;
  }

  get initialized() {
    return this.lines.some(({ message }) => message.method === "initialized");
  }

  /** Whether the extension has said yes to the server's dynamic registration. */
  get registered() {
    const asked = this.lines.find(({ message }) => message.method === "client/registerCapability")?.message.id;
    return this.lines.some(({ from, message }) => from === "editor" && !message.method && message.id === asked);
  }

  /** Messages with a method, each with its time. */
  all(method) {
    return this.lines
      .filter(({ message }) => message.method === method)
      .map(({ at, message }) => ({ at, ...message.params }));
  }

  /** Every question for ghost text with what became of it: {id, at, params, answered, items | error, cancelled}. */
  get questions() {
    const asked = new Map();
    for (const { at, from, message } of this.lines) {
      if (from === "editor" && message.method === ASK)
        asked.set(message.id, { id: message.id, at, params: message.params });
      const one = asked.get(message.id);
      if (from === "server" && one && !message.method)
        Object.assign(one, { answered: at, items: message.result?.items, error: message.error });
      if (message.method === "$/cancelRequest" && asked.has(message.params.id))
        asked.get(message.params.id).cancelled = at;
    }
    return [...asked.values()];
  }

  /** Those that were answered with something, the newest last. */
  get answers() {
    return this.questions.filter(({ items }) => items?.length);
  }

  /** The statuses that the server told of. */
  get statuses() {
    return this.all("didChangeStatus");
  }

  /** The server's own process. */
  get server() {
    return this.lines.find(({ from }) => from === "tap").message.server;
  }

  /** What the server says of itself now, with its counters. */
  async status() {
    const port = await until("the tap's port", () => this.lines.find(({ from }) => from === "tap")?.message.port);
    return (await fetch(`http://127.0.0.1:${port}/`)).json();
  }
}
