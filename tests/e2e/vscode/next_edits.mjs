// Next edits in VS Code: a name is renamed at its definition, and its other places are offered, without a model.
import assert from "node:assert/strict";
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { until } from "./waiting.mjs";

const CODE =
  "def total(items):\n    return sum(items)\n\n\ndef report(items):\n    print(total(items))\n    log(total(items))\n";
const RENAMED = CODE.replaceAll("total", "tally");
const CALLS = ["    print(total(items))", "    log(total(items))"];

/** What the editor shows of an edit: the hint, the struck out and the added text, the arrow in the gutter, pictures. */
function drawn(window) {
  return window.page.evaluate(() => {
    const root = document.querySelector(".editor-instance .monaco-editor");
    const found = { hint: "", removed: "", added: "", arrows: 0, pictures: 0 };
    for (const span of root.querySelectorAll(".view-lines span")) {
      const content = getComputedStyle(span, "::after").content;
      if (/^url/.test(content)) found.pictures += 1;
      else if (/^"/.test(content)) found[content.includes("⇥") ? "hint" : "added"] += JSON.parse(content).trim();
      const isStruck = getComputedStyle(span).textDecorationLine === "line-through";
      if (isStruck && !span.querySelector("span")) found.removed += span.textContent;
    }
    for (const each of root.querySelectorAll(".margin .cgmr, .glyph-margin-widgets .cgmr"))
      found.arrows += /svg/.test(getComputedStyle(each).backgroundImage) ? 1 : 0;
    return found;
  });
}

const shows = (window, what, wanted) =>
  until(what, async () => {
    const now = await drawn(window);
    if (!Object.entries(wanted).every(([name, value]) => now[name] === value)) throw new Error(JSON.stringify(now));
    return true;
  });

const NOTHING = { hint: "", removed: "", added: "", arrows: 0 };
const HINT = { hint: "⇥ line 6", removed: "", added: "", arrows: 1 };
const FIRST = { hint: "", removed: "total", added: "tally", arrows: 1 };

/** A window in which the function was renamed at its definition. */
async function renamed(ide, settings = {}) {
  const window = await ide.open({ "a.py": CODE }, ["a.py", 1, 10], settings);
  for (let n = 0; n < "total".length; n++) await window.press("Backspace");
  await window.type("tally");
  await window.press("Escape"); // of a list of completions, or of ghost text
  return window;
}

const asked = (window) => window.wire.all("codespec/nextEdit").map(({ trigger }) => trigger);
const commands = (window) => window.wire.all("workspace/executeCommand").map(({ command }) => command);

/** A window in which a letter was typed; the edit that it gets for that is planted. */
async function planted(ide, at, key, hunk, settings = {}) {
  const file = join(ide.server.taps, "hunks");
  writeFileSync(file, JSON.stringify([hunk]));
  try {
    const window = await ide.open({ "a.py": CODE }, ["a.py", ...at], { "codespec.nextEdit": "eager", ...settings });
    await window.type(key);
    await until("it is shown", () => window.wire.all("codespec/didShowEdit").length);
    return window;
  } finally {
    rmSync(file);
  }
}

const range = (line, character) => ({ start: { line, character }, end: { line, character } });

export const nextEdits = {
  async "a next edit: the hint, the jump, each place, and one undo"(ide) {
    const window = await renamed(ide);
    await shows(window, "a hint", HINT);
    await ide.shot(window, "edit-hint");
    await window.press("Tab");
    await shows(window, "the whole edit", FIRST);
    assert.match(await window.cursor(), /^Ln 6, Col 11/);
    await ide.shot(window, "edit-whole");
    await window.press("Tab");
    await shows(window, "the other place", { ...HINT, hint: "⇥ line 7" });
    await window.press("Tab");
    await shows(window, "the other edit", FIRST);
    await window.press("Tab");
    await shows(window, "no more", NOTHING);
    assert.equal(await window.save("a.py"), RENAMED);
    const accepted = commands(window).filter((name) => name === "codespec.acceptEdit");
    assert.equal(accepted.length, 2);
    assert.ok(asked(window).includes("accepted"));
    await window.press("Control+Z");
    assert.equal(await window.save("a.py"), RENAMED.replace(CALLS[1].replace("total", "tally"), CALLS[1]));
  },

  async "a next edit: Escape dismisses it until the next change, typing hides it"(ide) {
    const window = await renamed(ide);
    await shows(window, "a hint", HINT);
    await window.press("Escape");
    await shows(window, "nothing", NOTHING);
    await until("it is reported", () => commands(window).includes("codespec.dismissEdit"));
    const before = asked(window).length;
    await window.press("ArrowDown");
    await window.press("ArrowUp");
    await window.press("Tab"); // its own meaning
    await until("the change is asked for", () => asked(window).length > before);
    assert.deepEqual(asked(window).slice(before), ["typing"], "nothing is asked between");
    assert.match(await window.save("a.py"), /^def tally( |\t)+\(items\)/, "Tab is a tab");
  },

  async "a next edit: eager shows it at once, off never"(ide) {
    const window = await renamed(ide, { "codespec.nextEdit": "eager" });
    await shows(window, "hint and edit", { ...FIRST, hint: "⇥ line 6" });
    await ide.shot(window, "edit-eager");
    const other = await renamed(ide, { "codespec.nextEdit": "off" });
    await other.press("ArrowDown");
    await other.command("codespec: Show the Next Edit"); // what follows it is asked for after what the change would ask
    await until("it is asked", () => asked(other).length);
    assert.deepEqual(asked(other), ["invoked"]);
    await shows(other, "nothing", NOTHING);
  },

  async "a next edit: Tab indents, and belongs to a list of completions"(ide) {
    const window = await renamed(ide);
    await shows(window, "a hint", HINT);
    await window.press("ArrowDown");
    await window.press("Home");
    await shows(window, "nothing in the indentation", NOTHING);
    await window.press("End");
    await shows(window, "a hint again", HINT);
    await window.press("Control+Space");
    await window.page.waitForSelector(".suggest-widget.visible .monaco-list-row");
    await window.press("Tab");
    await window.page.waitForSelector(".suggest-widget.visible", { state: "hidden" });
    assert.match(await window.cursor(), /^Ln 2, /, "it did not jump");
  },
  async "a next edit: lines are added, as a picture until they are accepted"(ide) {
    const lines = "def show(items):\n\treturn str(items) & '<b>'\n\n\n";
    const window = await planted(ide, [1, 10], "s", { range: range(4, 0), newText: lines });
    await shows(window, "a picture", { ...NOTHING, hint: "⇥ line 5", arrows: 1, pictures: 1 });
    await ide.shot(window, "edit-lines");
    await window.command("codespec: Jump to the Next Edit, Then Accept It");
    await until("it jumped", async () => (await window.cursor()).startsWith("Ln 4, "));
    await window.press("Tab");
    await shows(window, "nothing", NOTHING);
    const wanted = CODE.replace("total", "totals").replace("def report", `${lines}def report`);
    assert.equal(await window.save("a.py"), wanted);
  },

  async "a next edit: an insertion at the cursor is ghost text"(ide) {
    const insertion = { range: range(5, 23), newText: " end=''" };
    const window = await planted(ide, [6, 23], ",", insertion, { "codespec.enabled": false }); // no completion comes first
    await until("it is ghost text", async () => (await window.ghost()).trim() === "end=''");
    await shows(window, "nothing else", NOTHING);
    await window.press("Tab");
    await until("it is reported", () => commands(window).includes("codespec.acceptEdit"));
    assert.equal(await window.save("a.py"), CODE.replace("total(items))\n    log", "total(items), end='')\n    log"));
    assert.equal(asked(window).at(-1), "accepted");
  },
};
