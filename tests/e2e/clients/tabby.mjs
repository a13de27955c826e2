// Tabby's own agent (npm) as an editor runs it: a language server on stdio, here between this script and a real daemon.
// A recorder stands between the two, so that what the agent asked and what it made of the answer can be compared.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { serve } from "../daemons.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const TEXT = `import os


def first(values):
    for value in values:
        return value


def total(values):
    result = 0
    for value in values:
        result +`;
const STARTS = ["        result +", "    result =", "    for value in", "def total("]; // the document ends behind one of them
const SECONDS = 120;

/** Forwards everything to the daemon and keeps [method, path, body, status, reply]. */
async function record(url) {
  const seen = [];
  const server = createServer(async (request, response) => {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const body = Buffer.concat(chunks);
    const hasBody = !["GET", "HEAD"].includes(request.method);
    const headers = { "content-type": "application/json", authorization: request.headers.authorization ?? "" };
    const reply = await fetch(new URL(request.url, url), { method: request.method, headers, body: hasBody ? body : null });
    const text = await reply.text();
    seen.push({ method: request.method, path: request.url, body: body.toString(), status: reply.status, reply: text });
    response.writeHead(reply.status, { "content-type": reply.headers.get("content-type") ?? "text/plain" }).end(text);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { seen, url: `http://127.0.0.1:${server.address().port}`, stop: () => server.close() };
}

/** A language server's client: requests and notifications over stdio. */
function speak(child) {
  const waiting = new Map();
  let left = Buffer.alloc(0);
  let number = 0;
  const send = (message) => {
    const body = Buffer.from(JSON.stringify({ jsonrpc: "2.0", ...message }));
    child.stdin.write(Buffer.concat([Buffer.from(`Content-Length: ${body.length}\r\n\r\n`), body]));
  };
  child.stdout.on("data", (data) => {
    left = Buffer.concat([left, data]);
    for (;;) {
      const head = left.indexOf("\r\n\r\n");
      const size = head < 0 ? NaN : Number(/Content-Length: (\d+)/.exec(left.subarray(0, head).toString())?.[1]);
      if (!(left.length >= head + 4 + size)) return;
      const message = JSON.parse(left.subarray(head + 4, head + 4 + size).toString());
      left = left.subarray(head + 4 + size);
      waiting.get(message.id)?.(message);
      waiting.delete(message.id);
    }
  });
  const request = (method, params) =>
    new Promise((resolve, reject) => {
      const id = ++number;
      const late = setTimeout(() => reject(new Error(`${method}: no answer in ${SECONDS} s`)), SECONDS * 1000);
      waiting.set(id, (message) => {
        clearTimeout(late);
        message.error ? reject(new Error(JSON.stringify(message.error))) : resolve(message.result);
      });
      send({ id, method, params });
    });
  return { request, notify: (method, params) => send({ method, params }) };
}

async function ready(url) {
  const end = Date.now() + SECONDS * 1000;
  while ((await fetch(`${url}/health`)).status !== 200) {
    assert(Date.now() < end, "the daemon does not get ready");
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

const home = await mkdtemp(join(tmpdir(), "codespec-tabby-"));
const daemon = await serve();
const recorder = await record(daemon.url);
const env = { ...process.env, HOME: home, USERPROFILE: home };
try {
  await ready(daemon.url);
  const folder = join(home, ".tabby-client", "agent");
  await mkdir(folder, { recursive: true });
  const settings = `[server]\nendpoint = "${recorder.url}"\n\n[anonymousUsageTracking]\ndisable = true\n`;
  await writeFile(join(folder, "config.toml"), settings);
  const agent = spawn(process.execPath, [join(here, "node_modules/tabby-agent/dist/cli.js"), "--lsp", "--stdio"], { env });
  const ended = new Promise((resolve) => agent.once("exit", resolve));
  const { request, notify } = speak(agent);
  await request("initialize", { processId: null, rootUri: null, capabilities: {}, clientInfo: { name: "codespec-e2e" } });
  notify("initialized", {});

  let matched = 0;
  for (const [place, start] of STARTS.entries()) {
    const text = TEXT.slice(0, TEXT.lastIndexOf(start) + start.length);
    const lines = text.split("\n");
    const uri = `file:///sample${place}.py`;
    notify("textDocument/didOpen", { textDocument: { uri, languageId: "python", version: 1, text } });
    const position = { line: lines.length - 1, character: lines.at(-1).length };
    const before = recorder.seen.length;
    const answer = await request("textDocument/completion", { textDocument: { uri }, position });
    const asked = recorder.seen.slice(before).find((one) => one.path === "/v1/completions");
    assert(asked, "the agent asked for no completion");
    assert.equal(asked.status, 200, asked.reply);
    assert.equal(JSON.parse(asked.body).segments.prefix, text);
    const said = JSON.parse(asked.reply).choices[0].text;
    const items = Array.isArray(answer) ? answer : (answer?.items ?? []);
    console.log(`tabby: ${JSON.stringify(start)} → daemon ${JSON.stringify(said)}, agent offers ${items.length}`);
    if (!items.length) continue; // the agent drops what is short or repeats
    assert.equal(items[0].data.completionId, JSON.parse(asked.reply).id);
    const offered = items[0].textEdit.newText;
    assert(offered.includes(said.trim().split("\n")[0].trim()), `${JSON.stringify(offered)} is not what the daemon wrote`);
    matched += 1;
  }
  assert(matched > 0, "the agent offered nothing of what the daemon wrote");
  for (const path of ["/v1/health", "/v1beta/server_setting"]) {
    const asked = recorder.seen.find((one) => one.path === path && one.status === 200);
    assert(asked, `${path} was not asked: the agent does not learn that telemetry is off`);
  }
  assert(recorder.seen.every((one) => one.status === 200), "the daemon refused something");
  await request("shutdown");
  notify("exit");
  await ended;
  console.log(`tabby: tabby-agent 1.5.0 works: ${matched} of ${STARTS.length} completions offered, telemetry off`);
} finally {
  recorder.stop();
  await daemon.stop();
  await rm(home, { recursive: true, force: true });
}
