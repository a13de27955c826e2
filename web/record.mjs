// Records one completion for the page's first visit: `node record.mjs URL NAME` requests the Python sample from the
// daemon at URL and writes the stream to src/recorded.json, under the name of its models. Run it twice, because the daemon
// must have the sample in its cache.
import { readFile, writeFile } from "node:fs/promises";

const [url, of] = process.argv.slice(2);
const sample = await readFile(new URL("samples/python.txt", import.meta.url), "utf8");
const cursor = sample.indexOf("‸");
const ask = {
  document: `record:${Date.now()}`,
  version: 1,
  language: "python",
  path: "inventory.py",
  prefix: sample.slice(0, cursor),
  prefix_offset: 0,
  suffix: sample.slice(cursor + 1),
  trigger: "manual",
  shape: "auto",
  max_tokens: 64,
};
const began = performance.now();
const events = [];
let held = "";
const response = await fetch(`${url}/v1/codespec/complete`, {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify(ask),
});
if (!response.ok) throw new Error(`The daemon says ${response.status}: ${await response.text()}`);
for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
  held += piece;
  const blocks = held.split("\n\n");
  held = blocks.pop();
  for (const block of blocks) {
    const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(block) ?? [];
    const at = Math.round(performance.now() - began);
    if (name === "text") events.push({ at, event: { name, text: JSON.parse(data).text } });
    else if (name) events.push({ at, event: { name, [name]: JSON.parse(data) } });
  }
}
await writeFile(new URL("src/recorded.json", import.meta.url), JSON.stringify({ of, ask, events }, null, 1) + "\n");
console.log(`${events.length} events of ${of}`);
