import assert from "node:assert/strict";
import { test } from "node:test";
import type { Hunk } from "../src/hunk.ts";
import { type Answer, type Here, type Mode, NextEdits, type Trigger, type View } from "../src/next_edits.ts";

const CODE = ["def tally(items):", "    return sum(items)", "", "print(total(a))", "log(total(b))", ""];

/** An editor and a server that answers with what is planted, and the next edits between them. */
class Scene {
  lines = [...CODE];
  version = 1;
  at: [number, number] = [0, 9];
  selected = false;
  how: Mode = "hint";
  view: View | null = null;
  planted: { readonly row: number; readonly end: number; readonly text: string }[][] = [];
  readonly asked: Trigger[] = [];
  readonly ran: unknown[][] = [];
  readonly announced: string[] = [];
  readonly said: string[] = [];
  private release: (() => void)[] | null = null;

  readonly edits: NextEdits = new NextEdits(
    {
      mode: () => this.how,
      here: () => this.here(),
      draw: (view) => (this.view = view),
      jump: (line, character) => this.move(line, character),
      apply: (hunk) => this.apply(hunk),
      ask: (trigger) => this.answer(trigger),
      run: (...given) => this.ran.push(given),
      shown: (id) => this.announced.push(id),
      tell: (sentence) => this.said.push(sentence),
    },
    { pause: 1, rest: 1, recent: 10_000 },
  );

  here(): Here | null {
    const [line, character] = this.at;
    if (this.selected) return null;
    const before = this.lines[line]!.slice(0, character);
    return { uri: "file:///a.py", version: this.version, line, character, before, lines: () => this.lines };
  }

  move(line: number, character: number): void {
    this.at = [line, character];
    this.edits.moved();
  }

  type(): void {
    this.version += 1;
    this.edits.changed();
  }

  plant(...hunks: [number, number, string][]): void {
    this.planted.push(hunks.map(([row, end, text]) => ({ row, end, text })));
  }

  /** From now on the server is slow, until it answers. */
  slow(): void {
    this.release = [];
  }

  async answers(): Promise<void> {
    for (const each of this.release ?? []) each();
    this.release = null;
    await settled();
  }

  private async apply({ row, old, new: added }: Hunk): Promise<boolean> {
    this.lines.splice(row, old.length, ...added);
    this.type(); // the editor reports the change that was asked for
    await settled();
    this.move(row, this.lines[row]!.length);
    return true;
  }

  private async answer(trigger: Trigger): Promise<Answer> {
    this.asked.push(trigger);
    const { version } = this;
    const hunks = this.planted.shift();
    if (this.release) await new Promise<void>((resolve) => this.release!.push(resolve));
    if (!hunks) return { edits: [], reason: "Nothing repeats the last change." };
    const found = hunks.map(({ row, end, text }) => ({
      range: { start: { line: row, character: 0 }, end: { line: end, character: 0 } },
      newText: text,
    }));
    const textDocument = { uri: "file:///a.py", version };
    return { edits: [{ id: `edit-${this.asked.length}`, textDocument, hunks: found }] };
  }
}

async function settled(): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, 10));
  for (let n = 0; n < 5; n++) await new Promise((resolve) => setImmediate(resolve));
}

/** A name was renamed at its definition; its two other places are offered. */
async function renamed(): Promise<Scene> {
  const scene = new Scene();
  scene.plant([3, 4, "print(tally(a))\n"], [4, 5, "log(tally(b))\n"]);
  scene.type();
  await settled();
  return scene;
}

const look = ({ view }: Scene): [number, boolean] | null => view && [view.hunk.row, view.whole];

test("a hint, then the jump, then each hunk", async () => {
  const scene = await renamed();
  assert.deepEqual(look(scene), [3, false]);
  await scene.edits.take();
  assert.deepEqual([scene.at, look(scene)], [[3, 6], [3, true]]);
  await scene.edits.take();
  assert.equal(scene.lines[3], "print(tally(a))");
  assert.deepEqual(look(scene), [4, false]);
  await scene.edits.take();
  await scene.edits.take();
  assert.equal(scene.lines[4], "log(tally(b))");
  assert.equal(look(scene), null);
  assert.deepEqual(scene.asked, ["typing", "accepted", "accepted"]);
  assert.deepEqual(scene.ran, [
    ["codespec.acceptEdit", "edit-1", 0],
    ["codespec.acceptEdit", "edit-1", 1],
  ]);
  assert.deepEqual(scene.announced, ["edit-1"]);
});

test("lines that a hunk adds move the hunks below it", async () => {
  const scene = new Scene();
  scene.plant([3, 3, "import a\nimport b\n"], [4, 5, "log(tally(b))\n"]);
  scene.type();
  await settled();
  await scene.edits.take();
  await scene.edits.take();
  assert.deepEqual(look(scene), [6, false]);
});

test("the cursor that arrives sees the whole edit, and it stays whole", async () => {
  const scene = await renamed();
  scene.move(1, 8);
  assert.deepEqual(look(scene), [3, false]);
  scene.move(3, 2);
  scene.move(1, 8);
  assert.deepEqual(look(scene), [3, true]);
  assert.deepEqual(scene.asked, ["typing"], "nothing is asked while an edit is there");
});

test("eager shows the whole edit at once, off asks nothing", async () => {
  const scene = new Scene();
  scene.how = "eager";
  scene.plant([3, 4, "print(tally(a))\n"]);
  scene.type();
  await settled();
  assert.deepEqual(look(scene), [3, true]);
  scene.how = "off";
  scene.type();
  scene.move(3, 2);
  await settled();
  assert.deepEqual([look(scene), scene.asked], [null, ["typing"]]);
});

test("one dismissal lasts until the next change", async () => {
  const scene = await renamed();
  scene.edits.dismiss();
  assert.equal(look(scene), null);
  assert.deepEqual(scene.ran, [["codespec.dismissEdit", "edit-1"]]);
  scene.move(2, 0);
  scene.move(0, 4);
  await settled();
  assert.deepEqual(scene.asked, ["typing"]);
  scene.plant([3, 4, "print(tally(a))\n"]);
  scene.type();
  await settled();
  assert.deepEqual(look(scene), [3, false]);
});

test("a change hides it, and an answer to an older text is dropped", async () => {
  const scene = await renamed();
  scene.slow();
  scene.plant([3, 4, "print(old(a))\n"]);
  scene.type();
  assert.equal(look(scene), null);
  await settled();
  scene.type();
  await scene.answers();
  assert.equal(look(scene), null);
});

test("a movement to another line soon after a change asks; a change is not asked for twice", async () => {
  const scene = new Scene();
  scene.move(1, 4);
  await settled();
  assert.deepEqual(scene.asked, [], "nothing was changed yet");
  scene.type();
  scene.move(2, 0);
  await settled();
  assert.deepEqual(scene.asked, ["typing"], "the change moved the cursor");
  scene.move(3, 0);
  await settled();
  scene.move(3, 2);
  await settled();
  assert.deepEqual(scene.asked, ["typing", "moved"]);
});

test("Tab indents in the indentation, unless it has just jumped there", async () => {
  const scene = await renamed();
  scene.move(1, 4);
  assert.equal(look(scene), null);
  scene.move(1, 8);
  assert.deepEqual(look(scene), [3, false]);
  scene.edits.dismiss();
  scene.plant([1, 2, "\tyield sum(items)\n"]);
  scene.move(4, 3);
  scene.type();
  await settled();
  await scene.edits.take();
  assert.deepEqual([scene.at, look(scene)], [[1, 0], [1, true]]);
});

test("a selection hides it, and gives it back", async () => {
  const scene = await renamed();
  scene.selected = true;
  scene.edits.moved();
  assert.equal(look(scene), null);
  scene.selected = false;
  scene.edits.moved();
  assert.deepEqual(look(scene), [3, false]);
});

test("an insertion at the cursor is ghost text, whose acceptance is reported", async () => {
  const scene = new Scene();
  scene.at = [3, 13];
  scene.plant([3, 4, "print(total(a, b))\n"]);
  scene.type();
  await settled();
  assert.deepEqual(scene.edits.ghost(), { text: ", b", id: "edit-1", index: 0 });
  assert.equal(scene.view?.text, ", b");
  await scene.edits.inserted("edit-1", 0);
  assert.deepEqual([scene.ran, scene.asked], [[["codespec.acceptEdit", "edit-1", 0]], ["typing", "accepted"]]);
});

test("it is requested by command, and the reason is told if there is none", async () => {
  const scene = new Scene();
  scene.how = "off";
  await scene.edits.reveal();
  assert.deepEqual(scene.said, ["Nothing repeats the last change."]);
  scene.plant([3, 4, "print(tally(a))\n"]);
  await scene.edits.reveal();
  assert.deepEqual(look(scene), [3, true]);
});
