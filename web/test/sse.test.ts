import assert from "node:assert/strict";
import { test } from "node:test";
import { EventReader } from "../src/sse.ts";

const STREAM = 'event: text\ndata: {"text":"a\\n\\nb"}\n\ndata: plain\n\nevent: done\ndata: {}\n\n';
const EVENTS = [
  { name: "text", data: '{"text":"a\\n\\nb"}' },
  { name: "", data: "plain" },
  { name: "done", data: "{}" },
];

test("however a stream is cut, its events are the same", () => {
  for (let first = 0; first <= STREAM.length; first++) {
    for (let second = first; second <= STREAM.length; second += 7) {
      const reader = new EventReader();
      const pieces = [STREAM.slice(0, first), STREAM.slice(first, second), STREAM.slice(second)];
      assert.deepEqual(
        pieces.flatMap((piece) => reader.push(piece)),
        EVENTS,
      );
    }
  }
});

test("half an event is none", () => {
  assert.deepEqual(new EventReader().push("event: text\ndata: 1\n"), []);
});
