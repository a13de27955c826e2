// One tab with the page: opens it, reads what it shows, and keeps what went over the wire. Asserts only that nothing
// came from elsewhere and that the browser complained of nothing.
import assert from "node:assert/strict";
import { join } from "node:path";

const MILLISECONDS = 120_000; // shared cores are slow by chance

export class Shown {
  asked = []; // bodies of all asks
  answers = []; // of finished asks: {asked, text, rounds, done}
  said = []; // what the browser complained of
  taken = 0; // answers that `completed` has told of
  reading = []; // of finished asks: promises that their answers are kept

  constructor(browser, url, out) {
    Object.assign(this, { browser, url, out });
  }

  /** Opens the page in a tab of its own; `shape` is chosen before the first ask, `before` sees the tab before that. */
  async open({ wait = true, shape = "auto", before = () => {}, ...look } = {}) {
    this.context = await this.browser.newContext({ viewport: { width: 1280, height: 860 }, ...look });
    this.context.setDefaultTimeout(MILLISECONDS);
    this.page = await this.context.newPage();
    this.page.on(
      "console",
      (message) => ["error", "warning"].includes(message.type()) && this.said.push(message.text()),
    );
    this.page.on("pageerror", (error) => this.said.push(error.stack));
    this.page.on("request", (request) => assert.ok(request.url().startsWith(`${this.url}/`), request.url()));
    this.page.on("request", (request) => request.method() === "POST" && this.asked.push(request.postDataJSON()));
    this.page.on("requestfinished", (request) => request.method() === "POST" && this.read(request));
    await this.page.addInitScript(watch, shape);
    await before(this.page);
    await this.page.goto(this.url);
    if (wait) await this.ready();
  }

  async close(excused = () => false) {
    this.page?.removeAllListeners("requestfinished");
    await Promise.all(this.reading); // a body cannot be read once its tab is closed
    const left = this.said.filter((one) => !excused(one));
    await this.context?.close();
    assert.deepEqual(left, [], "the browser complains");
  }

  read(request) {
    this.reading.push(this.keep(request).catch((error) => this.said.push(error.stack)));
  }

  async keep(request) {
    const response = await request.response();
    if (!response.ok()) return;
    const answer = { asked: request.postDataJSON(), text: "", rounds: [], done: null };
    const text = await response.text().catch((error) => {
      if (!error.message.includes("navigated away")) throw error;
      return ""; // the scenario loaded the page again, and Chromium has dropped the body
    });
    for (const block of text.split("\n\n")) {
      const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(block) ?? [];
      if (name === "text") answer.text += JSON.parse(data).text;
      if (name === "round") answer.rounds.push(JSON.parse(data));
      if (name === "done") answer.done = JSON.parse(data);
    }
    if (answer.done) this.answers.push(answer);
  }

  async state(name) {
    await this.page.waitForSelector(`#state[data-state=${name}]`);
  }

  ready() {
    return this.state("ready");
  }

  /** The newest answer, once the page is through with it. */
  async completed() {
    const end = Date.now() + MILLISECONDS;
    while (this.answers.length === this.taken) {
      assert.ok(Date.now() < end, "no completion came");
      await this.page.waitForTimeout(20);
    }
    await this.page.waitForTimeout(100);
    this.taken = this.answers.length;
    return this.answers.at(-1);
  }

  focus() {
    return this.page.locator(".cm-content").focus();
  }

  text(selector) {
    return this.page.locator(selector).textContent();
  }

  count(selector) {
    return this.page.locator(selector).count();
  }

  /** The ghost text: its first line and the block below it. */
  async ghost() {
    return (await this.page.locator(".cm-ghost").allTextContents()).join("\n").trimEnd();
  }

  async by(author) {
    return (await this.page.locator(`.cm-ghost .cm-by-${author}`).allTextContents()).join("");
  }

  style(author) {
    return this.page
      .locator(`.cm-ghost .cm-by-${author}`)
      .first()
      .evaluate((span) => {
        const { color, textDecorationStyle } = getComputedStyle(span);
        return { colour: color, line: textDecorationStyle };
      });
  }

  lit() {
    return this.page.locator(".cm-by.lit").evaluateAll((all) => all.map((one) => one.dataset.round));
  }

  /** How long the ghost text was, each time it changed. */
  lengths() {
    return this.page.evaluate(() => window.seen);
  }

  /** The line with the cursor, without its ghost. */
  line() {
    return this.page.locator(".cm-activeLine").evaluate((line) => {
      const copy = line.cloneNode(true);
      for (const ghost of copy.querySelectorAll(".cm-ghost")) ghost.remove();
      return copy.textContent;
    });
  }

  async document() {
    return (await this.page.locator(".cm-line").allTextContents()).join("\n");
  }

  /** Sums over the timeline's own bars. */
  bars() {
    return this.page.locator("#rounds > *").evaluateAll((all) => {
      const read = (selector) =>
        all.reduce((sum, bar) => sum + Number(bar.querySelector(selector).style.getPropertyValue("--n")), 0);
      return { drafted: read(".draft"), accepted: read(".kept") };
    });
  }

  async contexts() {
    const rows = await this.page.locator("#contexts .bar-row").all();
    const texts = rows.map(async (row) => [
      await row.locator(".bar-name").textContent(),
      await row.locator(".bar-value").textContent(),
    ]);
    return Object.fromEntries(await Promise.all(texts));
  }

  async shot(name, fullPage = false) {
    await this.page?.screenshot({ path: join(this.out, `${name}.png`), fullPage });
  }
}

/** Runs in the page before its own script: chooses the shape, and notes how the ghost text grows. */
function watch(shape) {
  window.seen = [];
  document.addEventListener("DOMContentLoaded", () => {
    document.querySelector("#shape").value = shape;
    const note = () => {
      const ghosts = document.querySelector("#editor").shadowRoot?.querySelectorAll(".cm-ghost") ?? [];
      const length = [...ghosts].reduce((sum, ghost) => sum + ghost.textContent.length, 0);
      if (length && length !== window.seen.at(-1)) window.seen.push(length);
      requestAnimationFrame(note);
    };
    note();
  });
}
