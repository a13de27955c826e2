import assert from "node:assert/strict";
import { test } from "node:test";
import { MAX_TOLD, MoreGate, type Place } from "../src/more.ts";

const SPOT: Place = { uri: "file:///a.py", version: 7, line: 3, character: 9, selected: "" };

/** A server whose text grows, an editor that shows answers, and the gate between them. */
class Scene {
  here: Place | null = SPOT;
  text = "a";
  shown = "";
  readonly fetched: string[] = [];
  deaf = 0; // so many times it does not ask though it was told to
  refreshed = 0;
  private release: (() => void) | null = null;
  readonly gate: MoreGate<string> = new MoreGate(
    {
      isHere: (place) => JSON.stringify(place) === JSON.stringify(this.here),
      hasSome: (items) => items !== "",
      refresh: () => {
        this.refreshed += 1;
        if (this.deaf > 0) this.deaf -= 1;
        else setImmediate(() => void this.asks());
      },
    },
    1,
  );

  /** The editor asks and shows the answer. */
  async asks(place: Place = SPOT): Promise<void> {
    const fetch = async (): Promise<string> => {
      this.fetched.push(this.text);
      const { text } = this;
      if (this.release) await new Promise<void>((resolve) => (this.release = resolve));
      return text;
    };
    this.shown = (await this.gate.answer(place, fetch, fetch)) ?? "";
  }

  async grows(version = 7, uri = SPOT.uri): Promise<void> {
    this.text += "a";
    this.gate.grown(uri, version);
    await settled();
  }

  /** From now on the server is slow, until it answers. */
  slow(): void {
    this.release = () => {};
  }

  async answers(): Promise<void> {
    const { release } = this;
    this.release = null;
    release?.();
    await settled();
  }
}

async function until(condition: () => boolean): Promise<void> {
  for (let n = 0; !condition(); n++) {
    assert.ok(n < 2000, "it never came");
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

/** Long enough for all that is due by now. */
async function settled(): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, 5));
  for (let n = 0; n < 5; n++) await new Promise((resolve) => setImmediate(resolve));
}

test("each word that there is more fetches once and shows what was fetched", async () => {
  const scene = new Scene();
  await scene.asks();
  await scene.grows();
  assert.deepEqual([scene.shown, scene.fetched], ["aa", ["a", "aa"]]);
  await scene.grows();
  assert.deepEqual([scene.shown, scene.fetched], ["aaa", ["a", "aa", "aaa"]]);
});

test("many words in a short time are one answer", async () => {
  const scene = new Scene();
  await scene.asks();
  for (let n = 0; n < 5; n++) scene.gate.grown(SPOT.uri, 7);
  await scene.grows();
  assert.deepEqual([scene.shown, scene.refreshed, scene.fetched.length], ["aa", 1, 2]);
});

test("not for another document, another version, another place, an entry of a list, a selection", async () => {
  const places: (Place | null)[] = [
    null,
    { ...SPOT, uri: "file:///b.py" },
    { ...SPOT, version: 8 },
    { ...SPOT, line: 4 },
    { ...SPOT, character: 10 },
  ];
  for (const here of places) {
    const scene = new Scene();
    await scene.asks();
    scene.here = here;
    await scene.grows();
    assert.deepEqual([scene.shown, scene.fetched.length], ["a", 1], JSON.stringify(here));
  }
  const scene = new Scene();
  await scene.asks();
  await scene.grows(6);
  await scene.grows(7, "file:///b.py");
  assert.equal(scene.refreshed, 0);
});

test("not where nothing was asked, nor after it was dismissed, nor where there is nothing to show", async () => {
  const fresh = new Scene();
  await fresh.grows();
  assert.deepEqual(fresh.fetched, []);
  const scene = new Scene();
  await scene.asks();
  scene.gate.dismissed();
  await scene.grows();
  assert.equal(scene.refreshed, 0);
  await scene.asks();
  scene.text = "";
  scene.gate.grown(SPOT.uri, 7);
  await settled();
  assert.equal(scene.refreshed, 0);
});

test("a word that comes while more is fetched is not lost", async () => {
  const scene = new Scene();
  await scene.asks();
  scene.slow();
  await scene.grows();
  scene.text = "aaa";
  scene.gate.grown(SPOT.uri, 7);
  await scene.answers();
  await settled();
  assert.equal(scene.shown, "aaa");
});

test("what was fetched is dropped when the user types on or dismisses it meanwhile", async () => {
  for (const leave of [
    (scene: Scene) => (scene.here = { ...SPOT, version: 8 }),
    (scene: Scene) => scene.gate.dismissed(),
  ]) {
    const scene = new Scene();
    await scene.asks();
    scene.slow();
    await scene.grows();
    leave(scene);
    await scene.answers();
    assert.deepEqual([scene.shown, scene.refreshed], ["a", 0]);
  }
});

test("what is ready for one place is no answer for another", async () => {
  const scene = new Scene();
  scene.deaf = Infinity;
  await scene.asks();
  await scene.grows();
  await scene.asks({ ...SPOT, selected: "name" });
  assert.equal(scene.fetched.length, 3);
  await scene.asks();
  assert.equal(scene.fetched.length, 4);
});

test("dismissed before the editor asked: it gets nothing, and is not told again; the user may ask anew", async () => {
  const scene = new Scene();
  scene.deaf = Infinity;
  await scene.asks();
  await scene.grows();
  scene.gate.dismissed();
  const { refreshed } = scene;
  await scene.asks();
  assert.equal(scene.shown, "");
  await scene.grows();
  assert.equal(scene.refreshed, refreshed);
  await scene.asks();
  assert.equal(scene.shown, "aaa");
});

test("an editor that did not ask is told again, and gets what was fetched for it", async () => {
  const scene = new Scene();
  await scene.asks();
  await scene.grows();
  scene.deaf = 2;
  await scene.grows();
  await until(() => scene.shown === "aaa");
  await settled();
  assert.deepEqual([scene.refreshed, scene.fetched], [4, ["a", "aa", "aaa"]]);
});

test("one that never asks is told a few times, and again when there is more", async () => {
  const scene = new Scene();
  scene.deaf = Infinity;
  await scene.asks();
  await scene.grows();
  await until(() => scene.refreshed === MAX_TOLD);
  await settled();
  assert.equal(scene.refreshed, MAX_TOLD);
  scene.deaf = 0;
  await scene.grows();
  assert.deepEqual([scene.shown, scene.refreshed], ["aaa", MAX_TOLD + 1]);
});

test("it is not told again where the user went away, typed on or dismissed it", async () => {
  for (const leave of [
    (scene: Scene) => (scene.here = null),
    (scene: Scene) => (scene.here = { ...SPOT, version: 8 }),
    (scene: Scene) => scene.gate.dismissed(),
    (scene: Scene) => void scene.asks({ ...SPOT, version: 8 }),
  ]) {
    const scene = new Scene();
    scene.deaf = Infinity;
    await scene.asks();
    scene.gate.grown(SPOT.uri, 7);
    await until(() => scene.refreshed > 0);
    leave(scene);
    const { refreshed } = scene;
    await settled();
    assert.equal(scene.refreshed, refreshed, leave.toString());
  }
});

test("it is known that a text has grown, until the user asks", async () => {
  const scene = new Scene();
  await scene.asks();
  assert.ok(!scene.gate.hasGrown);
  await scene.grows();
  assert.ok(scene.gate.hasGrown);
  await scene.asks();
  assert.ok(!scene.gate.hasGrown);
});
