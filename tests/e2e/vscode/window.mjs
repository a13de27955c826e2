// One window of VS Code in the browser: opens a file at a place, types, reads what it shows and what it saves.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { pause, until } from "./waiting.mjs";
import { Wire } from "./wire.mjs";

const EDITOR = ".editor-instance .monaco-editor";
const START = 90_000; // milliseconds
const HEARD = 1_000; // milliseconds; no message tells that the window has heard of a provider that its host registered

export class Window {
  /** `files`: names and texts; `at`: [name, line, column] of the cursor, from 1. */
  static async open(context, server, folder, files, at) {
    const window = new Window();
    Object.assign(window, { context, server, folder, files });
    mkdirSync(folder, { recursive: true });
    for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
    await window.#start(at).catch(async (error) => {
      console.log(`vscode: the window did not start (${error.message.split("\n")[0]}), once more`);
      await window.page.close();
      await window.#start(at);
    });
    return window;
  }

  async #start([name, line, column]) {
    this.page = await this.context.newPage();
    const file = `vscode-remote://${this.server.address}${join(this.folder, name)}:${line}:${column}`;
    const payload = JSON.stringify([
      ["gotoLineMode", "true"],
      ["openFile", file],
    ]);
    await this.page.goto(`http://${this.server.address}/?folder=${this.folder}&payload=${encodeURIComponent(payload)}`);
    await this.page.waitForSelector(`${EDITOR} .view-line`, { timeout: START });
    this.wire = await until(
      "the language server is there",
      () => {
        const wire = Wire.find(this.server.taps, this.folder);
        return wire?.all("textDocument/didOpen").length && wire;
      },
      START,
    );
    await until("the provider is registered", () => this.wire.registered, START);
    await pause(HEARD);
    await this.page.evaluate(() => new Promise((done) => requestIdleCallback(done)));
    await this.page.waitForSelector(`${EDITOR}.focused`, { timeout: START });
    await until("the cursor is there", async () => (await this.cursor()).startsWith(`Ln ${line}, `));
    await this.page.evaluate(watch);
  }

  /** The record of the language server that this window has now; it had others, if it was started again. */
  newest() {
    return Wire.find(this.server.taps, this.folder);
  }

  cursor() {
    return this.page.locator('[id="status.editor.selection"]').textContent();
  }

  async type(text) {
    await this.page.keyboard.type(text, { delay: 30 });
  }

  press(key) {
    return this.page.keyboard.press(key);
  }

  /** The ghost text that is shown now. */
  ghost() {
    return this.page.evaluate(() => window.ghostText());
  }

  /** The ghost text, once it is what the server answered last. */
  async shown() {
    return until("the newest answer is shown", async () => {
      const rest = this.rest();
      const ghost = await this.ghost();
      return rest && same(ghost, rest) && rest;
    });
  }

  /** This text, once it is whole: the server's newest answer, and what is shown. */
  async whole(text) {
    await until(`all of it is shown: ${JSON.stringify(text)}`, async () => {
      return same(this.rest(), text) && same(await this.ghost(), text);
    });
    return text;
  }

  /** What an answer puts behind the cursor. */
  rest({ items, params } = this.wire.answers.at(-1), index = 0) {
    const { insertText, range } = items[index];
    return insertText.slice(params.position.character - range.start.character);
  }

  /** What was shown so far, each time it changed, as far as it was an answer: what is drawn in two steps is not. */
  async states() {
    const answers = this.wire.answers.map((answer) => this.rest(answer));
    const seen = (await this.page.evaluate(() => window.ghosts)).filter((ghost) =>
      answers.some((text) => same(ghost, text)),
    );
    return seen.filter((ghost, index) => ghost !== seen[index - 1]);
  }

  /** Forgets what was shown so far. */
  fresh() {
    return this.page.evaluate(() => void (window.ghosts = []));
  }

  /** Saves, and returns what then is on the disk. */
  async save(name) {
    const file = join(this.folder, name);
    await this.press("Control+S");
    return until("the file is saved", () => {
      const text = readFileSync(file, "utf8");
      return text !== this.files[name] && (this.files[name] = text);
    });
  }

  /** What our item in the status bar says. */
  async status() {
    const item = this.page.locator('.statusbar-item[id^="codespec"]').first();
    return {
      text: (await item.textContent()).trim(),
      label: (await item.locator("a").getAttribute("aria-label")) ?? "",
    };
  }

  /** Runs a command by its title in the palette. */
  async command(title) {
    await this.press("F1");
    await this.page.waitForSelector(".quick-input-widget input:visible");
    await this.page.keyboard.type(title);
    const row = this.page.locator(".quick-input-list .monaco-list-row .label-name").getByText(title, { exact: true });
    await row.first().click();
    await this.page.waitForSelector(".quick-input-widget", { state: "hidden" });
  }

  async shot(out, name) {
    await this.page.screenshot({ path: join(out, `${this.server.version}-${name}.png`) });
  }

  async close() {
    await this.page.close({ runBeforeUnload: false });
  }
}

/** Whether two texts are the same but for white space at line ends and how it is drawn. */
export function same(drawn, text) {
  const plain = (one) =>
    one
      .replaceAll("\u00a0", " ")
      .replaceAll(/[ \t\r]*(\n|$)/g, "$1")
      .trimEnd();
  return plain(drawn) === plain(text);
}

/** Runs in the page: notes the ghost text whenever it changes. */
function watch() {
  window.ghosts = [];
  window.ghostText = () => {
    const root = document.querySelector(".editor-instance .monaco-editor");
    const inline = [
      ...root.querySelectorAll(".view-lines .ghost-text-decoration, .view-lines .ghost-text-decoration-preview"),
    ];
    const below = [
      ...root.querySelectorAll(".view-zones .ghost-text .view-line, .view-zones .suggest-preview-text .view-line"),
    ];
    return [inline.map((one) => one.textContent).join(""), ...below.map((one) => one.textContent)].join("\n");
  };
  let before = ""; // what stands for one frame only is half drawn
  const note = () => {
    const now = window.ghostText();
    if (now === before && now !== (window.ghosts.at(-1) ?? "")) window.ghosts.push(now);
    before = now;
    requestAnimationFrame(note);
  };
  note();
}
