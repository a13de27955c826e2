// What belongs to a product that one can install: versions that are compared, keys for words, lines and alternatives,
// the panel, the token, the list of completions beside ghost text. Each in a window of its own, as in scenarios.mjs.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { choose, LONG, WORDS } from "./places.mjs";
import { until } from "./waiting.mjs";
import { same } from "./window.mjs";

const TOKEN = "only-for-this-test-0123456789";
const toast = (window, text) => window.page.locator(".notification-toast", { hasText: text });

/** What the newest language server of a window got with its process. */
function variables(ide, window) {
  const { server } = window.newest();
  return existsSync(`/proc/${server}`) ? readFileSync(`/proc/${server}/environ`, "utf8").split("\0") : [];
}

/** The answer to an explicit question: it has alternatives. */
async function several(window) {
  return until("there are several", () => {
    const answer = window.wire.answers.at(-1);
    return answer?.items.length > 1 && answer;
  });
}

export const product = {
  async "the walkthrough leads from the server to the first suggestion"(ide) {
    const window = await ide.open({ "a.py": "x = 1\n" }, ["a.py", 1, 1]);
    const step = (title) => window.page.locator(".getting-started-step", { hasText: title });
    const isDone = (title) => async () => (await step(title).locator(".codicon.complete").count()) > 0;
    await window.command("codespec: Get Started");
    await step("Choose a model").waitFor();
    await until("the server is there, and its step is done", isDone("Set it up"));
    assert.equal(await isDone("Get the first suggestion")(), false);
    await ide.shot(window, "walkthrough");
    await step("Choose a model").click();
    await window.page.getByRole("button", { name: "Choose a Model", exact: true }).waitFor();
    await step("Get the first suggestion").click();
    await window.page.getByRole("button", { name: "Open the Sample", exact: true }).click();
    await until("there is ghost text in the sample", () => window.ghost());
    const text = (await window.ghost()).split("\n")[0].trim();
    await ide.shot(window, "sample");
    await window.press("Tab");
    await until("it stands in the sample", async () => {
      const shown = await window.page.locator(".editor-instance .view-lines").last().innerText();
      return shown.replaceAll("\u00a0", " ").includes(text) && !(await window.ghost()).includes(text);
    });
    await window.command("codespec: Get Started");
    await until("that step is done as well", isDone("Get the first suggestion"));
    await ide.shot(window, "walkthrough-done");
  },

  async "one button: an environment is made, the server runs from it, a model is asked for, a sample completes"(ide) {
    const window = await ide.open({ "a.py": "x = 1\n" }, ["a.py", 1, 1]);
    const script = new URL("fake_wheel.py", import.meta.url).pathname;
    const { "codespec.command": tap } = ide.server.always;
    const made = spawnSync("python3", [script, ide.server.home, tap], { encoding: "utf8" });
    assert.equal(made.status, 0, made.stderr);
    const { server: first } = window.newest();
    ide.server.settings({ "codespec.command": "", "codespec.installFrom": made.stdout.trim() });
    await until("there is no server", async () => /is not installed/.test((await window.status()).label));
    await window.command("codespec: Set Up");
    await window.page.waitForSelector(".quick-input-list .monaco-list-row:visible");
    await ide.shot(window, "set-up");
    assert.notEqual(window.newest().server, first);
    const environment = join(ide.server.home, "data/User/globalStorage/codespec.codespec/server");
    assert.ok(existsSync(join(environment, "codespec-ready")) && existsSync(join(environment, "bin/codespec")));
    await window.press("Escape");
    await until("there is ghost text in the sample", () => window.ghost());
  },

  async "a language server of another version is told in one sentence with the mend"(ide) {
    const planted = join(ide.server.taps, "version");
    writeFileSync(planted, "0.0.1");
    try {
      const window = await ide.open({ "a.py": "x = 1\n" }, ["a.py", 1, 1]);
      const words = /^codespec, Warning: The extension is codespec [\d.]+, its language server \(.*\) 0\.0\.1: install/;
      await until("the status bar says so", async () => words.test((await window.status()).label));
      await toast(window, "its language server").getByRole("button", { name: "Install the Server" }).waitFor();
      await ide.shot(window, "versions");
    } finally {
      rmSync(planted);
    }
  },

  async "it is accepted line by line"(ide) {
    const place = await choose(ide.daemon, LONG);
    assert.ok(place.text.includes("\n"), "a text of several lines");
    const window = await ide.openAt(place);
    await window.type(place.key);
    const text = await window.whole(place.text);
    let taken = "";
    for (const line of text.split(/(?<=\n)/)) {
      await until("the rest is shown", async () => same(await window.ghost(), text.slice(taken.length)));
      await window.press("Alt+ArrowDown");
      taken += line;
      assert.equal(await window.save("a.py"), place.before + taken + place.after);
      if (taken === line)
        await until("it was counted", async () => (await window.wire.status()).counters.partlyAccepted === 1);
    }
    assert.equal((await window.wire.status()).counters.accepted, 1);
  },

  async "the next alternative and the one before, by their keys, behind a text that has grown"(ide) {
    const place = await choose(ide.daemon, LONG);
    const window = await ide.openAt(place, { "codespec.budgetMs": 300 });
    const release = await ide.daemon.slow();
    try {
      await window.type(place.key);
      await window.whole(place.text);
    } finally {
      release();
    }
    await window.press("Alt+]");
    const answer = await several(window);
    const shows = (index) =>
      until(`alternative ${index} is shown`, async () => same(await window.ghost(), window.rest(answer, index)));
    await shows(1);
    await ide.shot(window, "alternative");
    await window.press("Alt+[");
    await shows(0);
  },

  async "the panel lists all alternatives, and Enter puts one in"(ide) {
    const place = await choose(ide.daemon, LONG);
    const window = await ide.openAt(place);
    await window.type(place.key);
    await window.whole(place.text);
    await window.command("codespec: Show All Alternatives");
    const lens = window.page.locator(".codelens-decoration a", { hasText: /^Insert \d$/ });
    await until("each has its button", async () => (await lens.count()) > 1);
    await ide.shot(window, "panel");
    const { items } = window.wire.answers.at(-1);
    const chosen = window.rest(undefined, 1);
    assert.notEqual(chosen, items[0].insertText);
    await lens.nth(1).click();
    await until("the panel is closed", async () => (await lens.count()) === 0);
    assert.equal(await window.save("a.py"), place.before + chosen + place.after);
    await until("it was counted", async () => (await window.wire.status()).counters.acceptedCharacters > 0);
  },

  async "the list of completions comes first: Tab takes its entry, and the ghost text is back when it is closed"(ide) {
    const place = await choose(ide.daemon, WORDS);
    const list = "zebra_one = 1\nzebra_two = 2\n";
    const settings = { "editor.wordBasedSuggestions": "currentDocument" };
    const window = await ide.openAt({ ...place, before: list + place.before }, settings);
    await window.type(place.key);
    await until("there is ghost text", () => window.ghost());
    const before = await window.ghost();
    await window.press("Control+Space");
    await window.page.waitForSelector(".suggest-widget.visible .monaco-list-row.focused");
    const entry = window.page.locator(".suggest-widget.visible .monaco-list-row.focused .label-name");
    const chosen = (await entry.textContent()).trim();
    await until("the ghost text goes on from the entry, or waits", async () => {
      const ghost = await window.ghost();
      return !ghost || ghost.trimStart().startsWith(chosen);
    });
    await ide.shot(window, "list");
    await window.press("Escape");
    await until("it is back, and may have grown", async () => {
      const ghost = await window.ghost();
      return ghost && same(ghost.slice(0, before.length), before);
    });
    await window.press("Control+Space");
    await window.page.waitForSelector(".suggest-widget.visible .monaco-list-row.focused");
    await window.press("Tab");
    assert.equal(await window.save("a.py"), list + place.before + chosen + place.after, "the entry alone");
  },

  async "a model is chosen by the machine's memory, and the status bar counts what has arrived"(ide) {
    const planted = join(ide.server.taps, "pull");
    const lines = [0, 17, 43, 99].map((percent) => `codespec: smollm2-135m: ${percent} %`);
    writeFileSync(planted, [lines[0], "codespec: smollm2-135m: 93 MB from somewhere", ...lines.slice(1)].join("\n"));
    try {
      const window = await ide.open({ "a.py": "x = 1\n" }, ["a.py", 1, 1]);
      await window.command("codespec: Choose a Model");
      const row = window.page.locator(".quick-input-list .monaco-list-row", { hasText: "smollm2-135m" });
      await row.waitFor();
      const rows = await window.page.locator(".quick-input-list .monaco-list-row").allTextContents();
      assert.ok(rows.every((text) => / of memory /.test(text)), JSON.stringify(rows));
      await ide.shot(window, "models");
      await row.click();
      for (const percent of [17, 43])
        await until(`${percent} %`, async () => (await window.status()).text.includes(`codespec · ${percent} %`));
      assert.match((await window.status()).label, /smollm2-135m is being fetched: \d+ %\./);
      await ide.shot(window, "pulling");
      const file = join(ide.server.home, "data/Machine/settings.json");
      await until("it is the one that is set", () => JSON.parse(readFileSync(file))["codespec.model"] === "smollm2-135m");
      await until("nothing is on its way any more", async () => !/being fetched/.test((await window.status()).label));
    } finally {
      rmSync(planted);
    }
  },

  async "a token in the settings is moved to the secret storage, goes to the server alone, and is forgotten"(ide) {
    const window = await ide.open({ "a.py": "x = 1\n" }, ["a.py", 1, 1], { "codespec.token": TOKEN });
    await toast(window, "It is in VS Code's secret storage now").waitFor();
    const settings = readFileSync(join(ide.server.home, "data/Machine/settings.json"), "utf8");
    assert.ok(!settings.includes(TOKEN) && settings.includes("codespec.url"), settings);
    const given = `CODESPEC_SERVE_TOKEN=${TOKEN}`;
    await until("the server has it", () => variables(ide, window).includes(given));
    const recorded = readFileSync(window.newest().file, "utf8");
    assert.ok(!recorded.includes(TOKEN), "nothing of it is on the wire");
    await window.command("codespec: Forget the Token");
    await until("a server has it no more", () => {
      const all = variables(ide, window);
      return all.length > 1 && !all.includes(given);
    });
  },
};
