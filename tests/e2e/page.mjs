// The page in a real browser against a real daemon. `node page.mjs OUT [WORDS]`: screenshots go to OUT. Ends with 1
// where something is not as it must be.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { root, serve } from "./daemons.mjs";
import { Shown } from "./shown.mjs";

const { chromium } = createRequire(new URL("../../web/package.json", import.meta.url))("playwright-core");
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
const GUESSING = ["--policy", "fixed:6", "--no-learn"]; // so that every run has drafts of both kinds to show
const SLOW = ["--dtype", "float32"]; // with torch, it starts late enough for a browser to see it
const TOKEN = "a-token-for-the-page-test";
const LANGUAGES = ["python", "javascript", "typescript", "c", "cpp", "rust", "go", "java"];
const [out, only = ""] = process.argv.slice(2); // `only`: the scenarios whose names have these words

const scenarios = {
  async "it says that the daemon is starting, then completes by itself"(shown) {
    await shown.open({ wait: false });
    // The sentence itself is waited for: read after the state, it may already be the next one.
    const said = (words) => new RegExp(words).test(document.querySelector("#state-said").textContent);
    const words = "^The daemon is starting \\(.+\\): try again in a moment\\.$";
    await shown.page.waitForFunction(said, words, { polling: 10 });
    await shown.ready();
    await shown.completed();
    assert.notEqual(await shown.ghost(), "");
  },

  async "a recorded example stands there until there is a completion"(shown) {
    await shown.open({ wait: false, before: (page) => page.route("**/v1/codespec/complete", () => {}) });
    await shown.ready();
    assert.match(await shown.text("#ended"), /^an example, recorded with /);
    assert.match(await shown.text("#saved"), /^\d+ tokens in \d+ steps of the big model, which alone needs /);
    assert.ok((await shown.count("#rounds > *")) > 2);
    assert.match(await shown.text("#round-facts"), /^Step \d+ of \d+/);
    assert.deepEqual(await shown.contexts(), {}, "it counts for nothing");
    assert.ok(await shown.page.isDisabled("#compare"));
    await shown.page.unroute("**/v1/codespec/complete");
    await shown.page.keyboard.press("Control+Space");
    await shown.completed();
    assert.doesNotMatch(await shown.text("#ended"), /recorded/);
  },

  async "colours say who wrote what"(shown) {
    await shown.open({ shape: "raw" });
    const colours = new Map(); // of each author, once it wrote something
    const plain = (text) => text.replaceAll(/\s/g, "");
    for (const language of LANGUAGES) {
      if (language !== "python") await shown.page.selectOption("#language", language);
      const { rounds } = await shown.completed();
      const told = { suffix: "", drafter: "", target: "" };
      for (const round of rounds) {
        told[round.source === "suffix" ? "suffix" : "drafter"] += round.accepted_text;
        told.target += round.target_text;
      }
      for (const [author, text] of Object.entries(told)) {
        assert.equal(plain(await shown.by(author)), plain(text), author);
        if (plain(text)) colours.set(author, await shown.style(author));
      }
      if (colours.size === 3) break;
    }
    assert.deepEqual(
      [...colours.keys()].sort(),
      ["drafter", "suffix", "target"],
      "all three wrote something somewhere",
    );
    assert.equal(new Set([...colours.values()].map(({ colour }) => colour)).size, 3);
    assert.equal(new Set([...colours.values()].map(({ line }) => line)).size, 3);
  },

  async "the timeline has every round, and the figures are the daemon's"(shown) {
    await shown.open({ shape: "raw" });
    const { rounds, done } = await shown.completed();
    assert.equal(await shown.count("#rounds > *"), done.stats.rounds);
    assert.equal(rounds.length, done.stats.rounds);
    assert.equal(await shown.text("#per-round"), (done.stats.committed / done.stats.rounds).toFixed(2));
    const bars = await shown.bars();
    assert.equal(bars.accepted, done.stats.accepted);
    assert.equal(bars.drafted, done.stats.drafted);
    const sums = Object.fromEntries(
      Object.entries(done.stats.by_context).map(([name, one]) => [
        name.replace("_", " "),
        `${one.accepted} of ${one.drafted}`,
      ]),
    );
    assert.deepEqual(await shown.contexts(), sums);
  },

  async "arrows walk the rounds, pointing lights up what one wrote, a replay tells them all"(shown) {
    await shown.open({ shape: "raw" });
    let { rounds } = await shown.completed();
    const refusal = () => rounds.findIndex((round) => round.accepted < round.drafted);
    for (const language of LANGUAGES.toReversed()) {
      if (refusal() >= 0 && rounds.length > 1) break; // the lookup may remember this text from an earlier scenario
      await shown.page.selectOption("#language", language);
      ({ rounds } = await shown.completed());
    }
    await shown.page.locator("#rounds > *").last().focus();
    await shown.page.keyboard.press("Home");
    assert.match(await shown.text("#round-facts"), new RegExp(`^Step 1 of ${rounds.length}`));
    assert.equal(await shown.text("#reason"), `Why this far: ${rounds[0].reason}`);
    await shown.page.keyboard.press("ArrowRight");
    assert.match(await shown.text("#round-facts"), /^Step 2 /);
    const refused = refusal();
    await shown.page.locator("#rounds > *").nth(refused).hover();
    const struck = rounds[refused].draft.slice(rounds[refused].accepted_text.length);
    assert.equal(await shown.text("#story s"), struck.replaceAll("\n", "⏎"));
    assert.ok((await shown.lit()).every((place) => place === String(refused)));
    await shown.page.click("#play");
    await shown.page.waitForFunction(
      (last) => document.querySelector("#round-facts").textContent.startsWith(`Step ${last} of`),
      Math.min(refused + 3, rounds.length),
    );
    await shown.page.click("#play");
  },

  async "typing along keeps the ghost and asks nothing"(shown) {
    await shown.open({ shape: "raw" });
    await shown.completed();
    const ghost = await shown.ghost();
    const typed = /^[^\n]{1,2}/.exec(ghost)[0];
    await shown.page.keyboard.type(typed, { delay: 20 });
    assert.equal(await shown.ghost(), ghost.slice(typed.length));
    await shown.page.waitForTimeout(300);
    assert.equal(shown.answers.length, 1);
  },

  async "another letter asks again, and only the newest answer is shown"(shown) {
    await shown.open();
    await shown.completed();
    await shown.page.keyboard.type("xs = [", { delay: 15 });
    await shown.page.waitForTimeout(400);
    const last = await shown.completed();
    assert.equal(await shown.ghost(), last.text.trimEnd());
    assert.ok(last.asked.prefix.endsWith("xs = ["));
    assert.equal(new Set(shown.asked.map(({ document }) => document)).size, 1);
  },

  async "Escape dismisses, and then Tab indents as everywhere"(shown) {
    await shown.open();
    await shown.completed();
    const before = await shown.line();
    await shown.page.keyboard.press("Escape");
    assert.equal(await shown.ghost(), "");
    await shown.page.waitForTimeout(2100); // within two seconds of Escape, Tab leaves the editor
    await shown.page.keyboard.press("Tab");
    assert.equal(await shown.line(), before + "    ");
    await shown.page.keyboard.press("Escape");
    await shown.page.keyboard.press("Tab");
    assert.equal(await shown.page.evaluate(() => document.activeElement.id === "editor"), false);
  },

  async "a word, then all of it, with its authors' colours"(shown) {
    await shown.open({ shape: "raw" });
    const { text } = await shown.completed();
    const before = await shown.line();
    await shown.page.locator("#automatic").uncheck();
    await shown.focus();
    await shown.page.keyboard.press("Alt+ArrowRight");
    const word = (await shown.line()).slice(before.length);
    assert.ok(word && text.startsWith(word) && word.length < text.length, word);
    assert.equal(await shown.ghost(), text.slice(word.length).trimEnd());
    await shown.page.keyboard.press("Control+ArrowRight");
    await shown.page.keyboard.press("Tab");
    assert.equal(await shown.ghost(), "");
    assert.ok((await shown.document()).includes(before + text.trimEnd()));
    assert.ok((await shown.count(".cm-written", true)) > 2);
    await shown.shot("accepted");
  },

  async "the target alone writes the same, and stands beside"(shown) {
    await shown.open({ shape: "raw" });
    await shown.completed();
    await shown.page.click("#compare");
    await shown.page.waitForFunction(() => document.querySelector("#same").textContent !== "");
    assert.equal(await shown.text("#same"), "Same text, character by character.");
    assert.equal(await shown.count("#speeds .bar-row"), 2);
    const plain = shown.answers.at(-1);
    assert.equal(plain.asked.speculate, false);
    assert.equal(plain.done.stats.drafted, 0);
    assert.match(await shown.text("#times"), /^\d+\.\d\d ×$/);
  },

  async "every language has its sample"(shown) {
    await shown.open();
    await shown.completed();
    const names = await shown.page.locator("#language option").evaluateAll((all) => all.map(({ value }) => value));
    assert.deepEqual(names, LANGUAGES);
    for (const name of LANGUAGES.slice(1)) {
      await shown.page.selectOption("#language", name);
      const { asked } = await shown.completed();
      assert.equal(asked.language, name);
      assert.ok(asked.prefix.length > 200 && !asked.prefix.includes("‸") && !asked.suffix.includes("‸"));
    }
  },

  async "a refusal is told in the daemon's words, until an answer comes"(shown) {
    await shown.open();
    await shown.completed();
    const said = "9 requests are open: try again in a moment.";
    const refusal = {
      status: 429,
      contentType: "application/json",
      body: JSON.stringify({ error: { message: said } }),
    };
    await shown.page.route("**/v1/codespec/complete", (route) => route.fulfill(refusal));
    await shown.page.keyboard.press("Control+Space");
    await shown.state("error");
    assert.equal(await shown.text("#state-said"), said);
    await shown.page.unroute("**/v1/codespec/complete");
    await shown.page.keyboard.press("Control+Space");
    await shown.ready();
  },

  async "colours are the system's until somebody chooses"(shown) {
    await shown.open({ colorScheme: "dark" });
    const ground = () => shown.page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const dark = await ground();
    await shown.page.click("#theme");
    assert.equal(await shown.page.getAttribute("#theme", "aria-label"), "Colours: light");
    const light = await ground();
    assert.notEqual(light, dark);
    await shown.page.reload();
    assert.equal(await ground(), light);
    await shown.page.click("#theme");
    assert.equal(await ground(), dark);
  },

  async "it says that the daemon is gone, killed in mid-stream"(shown, daemon) {
    await shown.open({ shape: "raw" });
    await shown.page.waitForSelector(".cm-ghost");
    await daemon.stop("SIGKILL");
    await shown.page.keyboard.press("Control+Space");
    await shown.state("away");
    assert.equal(await shown.text("#state-said"), "The daemon does not answer: start it with codespec serve.");
  },
};

async function looks(browser, daemon) {
  for (const scheme of ["light", "dark"]) {
    for (const [width, height] of [
      [1440, 900],
      [400, 860],
    ]) {
      const shown = new Shown(browser, daemon.url, out);
      await shown.open({ shape: "raw", viewport: { width, height }, colorScheme: scheme });
      await shown.completed();
      assert.ok((await shown.page.evaluate(() => document.documentElement.scrollWidth)) <= width, "it fits its window");
      const ground = await shown.page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      assert.equal(Number(/\d+/.exec(ground)[0]) > 128, scheme === "light");
      await shown.shot(`${scheme}-${width}`, width === 400);
      await shown.close();
    }
  }
}

/** On a daemon whose rounds take longer than a frame on any machine. */
async function streams(browser) {
  const folder = await mkdtemp(join(tmpdir(), "codespec-large-"));
  const large = ["-m", "codespec_lab.bench.enlarge", "qwen2.5-0.5b", join(folder, "target")];
  execFileSync(join(root, ".venv/bin/python"), large);
  const daemon = await serve(["--target", join(folder, "target")]);
  const shown = new Shown(browser, daemon.url, out);
  try {
    await daemon.ready;
    await shown.open({ shape: "raw" });
    const { text } = await shown.completed();
    assert.equal(await shown.ghost(), text.trimEnd());
    const lengths = await shown.lengths();
    assert.ok(lengths.length > 2, `it grew in ${lengths.length} steps`);
    assert.deepEqual(
      lengths,
      lengths.toSorted((a, b) => a - b),
    );
    await shown.close();
  } finally {
    await daemon.stop();
    await rm(folder, { recursive: true, force: true });
  }
}

async function tokens(browser) {
  const daemon = await serve([], { CODESPEC_SERVE_TOKEN: TOKEN });
  try {
    await daemon.ready;
    const shown = new Shown(browser, daemon.url, out);
    await shown.open({ wait: false });
    await shown.state("token");
    assert.ok(await shown.page.isVisible("#token-form"));
    await shown.shot("token");
    await shown.page.fill("#token", "not-the-token-at-all");
    await shown.page.keyboard.press("Enter");
    await shown.state("token");
    await shown.page.fill("#token", TOKEN);
    await shown.page.keyboard.press("Enter");
    await shown.ready();
    await shown.completed();
    assert.equal(await shown.page.evaluate(() => JSON.stringify(localStorage)), "{}");
    assert.equal(await shown.page.isVisible("#token-form"), false);
    await shown.close((said) => said.includes("401"));
    const other = new Shown(browser, daemon.url, out);
    await other.open({ wait: false });
    await other.state("token");
    await other.close((said) => said.includes("401"));
  } finally {
    await daemon.stop();
  }
}

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
const daemon = await serve([...GUESSING, ...SLOW]);
try {
  for (const [name, scenario] of Object.entries(scenarios)) {
    if (!name.includes(only)) continue;
    if (!name.includes("starting")) await daemon.ready;
    if (name.includes("gone")) await looks(browser, daemon);
    const shown = new Shown(browser, daemon.url, out);
    try {
      await scenario(shown, daemon);
    } catch (error) {
      await shown.shot("failed");
      throw new Error(`${name}: see ${join(out, "failed.png")}`, { cause: error });
    }
    await shown.close(
      (said) => /Failed to load resource|ERR_CONNECTION_REFUSED/.test(said) && /starting|gone|refusal/.test(name),
    );
    console.log(`page: ${name}`);
  }
  await streams(browser);
  console.log("page: the ghost text streams, and is what the daemon sent");
  await tokens(browser);
  console.log("page: a daemon with a token is asked with it, in this tab only");
} finally {
  await daemon.stop();
  await browser.close();
}
