// What must hold in VS Code, each in a window of its own: by what lies on the disk, what the language server and the
// daemon counted, and what is shown. A scenario gets `ide`: open(), daemon, server, shot().
import assert from "node:assert/strict";
import { nextEdits } from "./next_edits.mjs";
import { choose, LONG, OTHERWISE, PARTY, WORDS } from "./places.mjs";
import { product } from "./product.mjs";
import { pause, until } from "./waiting.mjs";
import { same } from "./window.mjs";

export const scenarios = {
  async "two windows start one daemon, and both get ghost text"(ide) {
    const place = WORDS[0];
    const [one, other] = [await ide.openAt(place), await ide.openAt(place)];
    await Promise.all([one.type(place.key), other.type(place.key)]);
    const text = await ide.daemon.complete(place.before, place.after);
    await Promise.all([one.whole(text), other.whole(text)]);
    assert.equal(ide.daemon.processes.length, 1);
    assert.notEqual(one.wire.server, other.wire.server);
    assert.ok(
      one.wire.statuses.some(({ busy }) => busy),
      "the first one was told that it starts",
    );
    await until("the status bar is at rest", async () => /codespec/.test((await one.status()).text));
    await ide.shot(other, "two-windows");
  },

  async "Tab takes it, and the file holds prefix, completion and suffix"(ide) {
    const place = await choose(ide.daemon, LONG);
    const window = await ide.openAt(place);
    await window.type(place.key);
    const text = await window.whole(place.text);
    await ide.shot(window, "ghost-text");
    const { counters } = await window.wire.status();
    assert.deepEqual([counters.fromDaemon, counters.shown, counters.accepted], [1, 1, 0]);
    await window.press("Tab");
    assert.equal(await window.save("a.py"), place.before + text + place.after);
    const after = (await window.wire.status()).counters;
    assert.deepEqual([after.accepted, after.acceptedCharacters], [1, text.length]);
  },

  async "an emoji and CRLF before the cursor"(ide) {
    const place = await choose(ide.daemon, PARTY);
    assert.ok(place.before.includes("\r\n") && /\p{Emoji_Presentation}[^\n]*$/u.test(place.before));
    const window = await ide.openAt(place);
    await window.type(place.key);
    const text = await window.whole(place.text);
    await ide.shot(window, "emoji");
    await window.press("Tab");
    const saved = await window.save("a.py");
    assert.equal(saved, place.before + text.replaceAll(/\r?\n/g, "\r\n") + place.after);
    assert.ok(!/[^\r]\n/.test(saved), "every line ends as before");
  },

  async "typing along costs no model work"(ide) {
    const place = await choose(ide.daemon, WORDS);
    const window = await ide.openAt(place);
    await window.type(place.key);
    const text = await window.whole(place.text);
    const before = await ide.daemon.settled();
    const answers = window.wire.answers.length;
    await window.type(text.slice(0, 3));
    await until("it was asked again", () => window.wire.answers.length > answers && window.rest() === text.slice(3));
    assert.ok(same(await window.shown(), text.slice(3)));
    assert.equal((await ide.daemon.asked()).requests, before.requests);
    const { counters } = await window.wire.status();
    assert.equal(counters.fromDaemon, 1);
    assert.ok(counters.fromMemory >= 1);
    await window.press("Tab");
    assert.equal(await window.save("a.py"), place.before + text + place.after);
  },

  async "a word is accepted, then the rest"(ide) {
    const place = await choose(ide.daemon, WORDS);
    const window = await ide.openAt(place);
    await window.type(place.key);
    const text = await window.whole(place.text);
    const { requests } = await ide.daemon.settled();
    await window.press("Control+ArrowRight");
    const word = (await window.save("a.py")).slice(place.before.length, -place.after.length);
    assert.ok(word && word.length < text.length && text.startsWith(word), JSON.stringify(word));
    const partly = await until("it was counted", async () => {
      const { counters } = await window.wire.status();
      return counters.partlyAccepted && counters;
    });
    assert.deepEqual([partly.partlyAccepted, partly.accepted, partly.acceptedCharacters], [1, 0, word.length]);
    await until("the rest is shown", async () => same(await window.ghost(), text.slice(word.length)));
    assert.equal((await ide.daemon.asked()).requests, requests, "no model work");
    await window.press("Tab");
    assert.equal(await window.save("a.py"), place.before + text + place.after);
    const { counters } = await window.wire.status();
    assert.deepEqual([counters.partlyAccepted, counters.accepted, counters.acceptedCharacters], [0, 1, text.length]);
  },

  async "it grows while it is written, and only grows"(ide) {
    const place = await choose(ide.daemon, LONG);
    const window = await ide.openAt(place, { "codespec.budgetMs": 300 });
    const before = await ide.daemon.settled();
    const release = await ide.daemon.slow();
    try {
      await window.type(place.key);
      await window.whole(place.text);
    } finally {
      release();
    }
    const told = window.wire.answers.map(({ items }) => items[0].insertText);
    for (const [index, text] of told.entries()) assert.ok(text.startsWith(told[index - 1] ?? ""), JSON.stringify(told));
    const seen = await window.states();
    assert.ok(seen.length >= 3, `it grew twice: ${JSON.stringify(seen)}`);
    assert.deepEqual(
      seen.map(({ length }) => length),
      seen.map(({ length }) => length).sort((a, b) => a - b),
    );
    const { counters } = await window.wire.status();
    assert.equal(counters.fromDaemon, 1, "one generation");
    assert.ok(counters.more >= 2);
    assert.equal((await ide.daemon.asked()).requests, before.requests + 1);
    await window.press("Tab");
    assert.equal(await window.save("a.py"), place.before + place.text + place.after);
    console.log(`vscode: it grew ${seen.length - 1} times: ${seen.map(({ length }) => length).join(", ")} characters`);
  },

  async "an answer comes in time though the daemon has none, and the text follows"(ide) {
    const place = await choose(ide.daemon, WORDS);
    const window = await ide.openAt(place);
    const release = ide.daemon.halt();
    try {
      await window.type(place.key);
      const asked = await until("it is answered", () => window.wire.questions.find(({ answered }) => answered));
      // 1.139 takes a question back after 750 ms
      assert.deepEqual([asked.items, asked.cancelled, asked.error], [[], undefined, undefined]);
    } finally {
      release();
    }
    await window.whole(place.text);
    assert.ok(window.wire.all("codespec/more").length >= 1);
    await window.press("Tab");
    assert.equal(await window.save("a.py"), place.before + place.text + place.after);
  },

  async "typing on cancels, and nothing old is shown"(ide) {
    const place = await choose(ide.daemon, LONG);
    const { typed, text } = await choose(
      ide.daemon,
      OTHERWISE.map((typed) => ({ ...place, before: place.before + typed, typed })),
    );
    const window = await ide.openAt(place);
    const before = await ide.daemon.settled();
    const release = await ide.daemon.slow();
    try {
      await window.type(place.key);
      await until("something is shown while the engine is at work", async () => {
        return (await window.ghost()) && (await ide.daemon.asked()).running === 1;
      });
      await window.type(typed);
      await until("the engine has stopped", async () => (await ide.daemon.asked()).cancelled > before.cancelled);
    } finally {
      release();
    }
    await window.fresh();
    await window.whole(text);
    for (const seen of await window.states()) assert.ok(same(seen, text.slice(0, seen.length)), seen);
    await window.press("Tab");
    assert.equal(await window.save("a.py"), place.before + typed + text + place.after);
  },

  async "killed, the daemon comes back by itself"(ide) {
    const place = await choose(ide.daemon, WORDS);
    const window = await ide.openAt(place);
    const [old] = ide.daemon.processes;
    process.kill(old, "SIGKILL");
    await window.type(place.key);
    await until("the status bar says so", async () => /start/i.test((await window.status()).label));
    await ide.shot(window, "daemon-starts");
    await ide.daemon.ready();
    await window.whole(place.text);
    assert.equal(ide.daemon.processes.length, 1);
    assert.notEqual(ide.daemon.processes[0], old);
    assert.ok(window.wire.statuses.some(({ busy, message }) => busy && message));
    assert.deepEqual([window.wire.statuses.at(-1).kind, window.wire.statuses.at(-1).busy], ["Normal", false]);
    await window.press("Tab");
    assert.equal(await window.save("a.py"), place.before + place.text + place.after);
  },

  async "a file with secrets is not sent, and the status bar says why"(ide) {
    const before = await ide.daemon.settled();
    const window = await ide.open({ ".env": "TOKEN=not-for-anybody\n" }, [".env", 2, 1]);
    await until("it is inactive", () => window.wire.statuses.some(({ kind }) => kind === "Inactive"));
    await window.type("PASSWORD=");
    await until("it is answered", () => window.wire.questions.some(({ answered }) => answered));
    assert.deepEqual(window.wire.answers, []);
    assert.equal((await ide.daemon.asked()).requests, before.requests);
    const { text, label } = await window.status();
    assert.match(`${text} ${label}`, /\.env may hold secrets/);
    await ide.shot(window, "inactive");
  },

  async "it is switched off and on again"(ide) {
    const place = await choose(ide.daemon, WORDS);
    const window = await ide.openAt(place);
    const before = await ide.daemon.settled();
    await window.command("codespec: Switch On or Off");
    await until("the status bar says so", async () => /off/.test((await window.status()).text));
    await window.type(place.key);
    await pause(300); // longer than an editor waits before it asks
    assert.equal(await window.ghost(), "");
    assert.equal((await ide.daemon.asked()).requests, before.requests);
    await ide.shot(window, "off");
    await window.command("codespec: Switch On or Off");
    await until("the status bar says so", async () => !/off/.test((await window.status()).text));
    await window.press("Backspace"); // a whole step of the indentation
    await window.type("    ");
    await window.whole(place.text);
  },

  ...product,
  ...nextEdits,

  // The last one: the daemon that it leaves was started with arguments of its own.
  async "a better model is offered once, and why it was not fetched is told"(ide) {
    const place = WORDS[0];
    const offering = { "codespec.daemonArguments": ["--model", ""] }; // whatever the environment says
    const toast = (window, text) => window.page.locator(".notification-toast", { hasText: text });
    ide.daemon.kill("SIGTERM"); // one that is killed is started again by whoever started it
    await until("it has ended", () => ide.daemon.processes.length === 0);
    const window = await ide.openAt(place, offering);
    await window.type(place.key);
    const question = toast(window, "Pull qwen2.5-coder-0.5b-instruct (491 MB), a real model?");
    await question.waitFor({ timeout: 60_000 });
    assert.match((await window.wire.status()).message, /^The small starter pair answers: `codespec models pull/);
    await ide.shot(window, "offer");
    const [daemon] = ide.daemon.processes;
    await question.getByRole("button", { name: "Pull", exact: true }).click();
    await toast(window, /qwen2\.5-coder-0\.5b-instruct was not fetched \(.+\)/).waitFor({ timeout: 60_000 }); // there is no index
    await ide.shot(window, "pull");
    assert.deepEqual(ide.daemon.processes, [daemon], "which changes nothing yet");
    await window.command("codespec: Restart the Daemon");
    await until("another one began", () => ide.daemon.processes.length === 1 && ide.daemon.processes[0] !== daemon);
    const other = await ide.openAt(place, offering);
    await other.type(place.key);
    await until("it is offered there too", () => other.wire.all("codespec/offer").length === 1);
    await pause(1000); // a question would have come by then
    assert.equal(await toast(other, "a real model?").count(), 0, "but the user was asked before");
  },
};
