#!/usr/bin/env node
// What the extension starts in the place of `codespec`: the real one, between two recorders. Every message is a line of
// a file in $E2E_TAPS, in the order and at the time it passed here. `GET /` on the port named there asks the
// language server for its status, which the editor does not see. Where there is a file $E2E_TAPS/hunks, its hunks are the
// answer to every request for a next edit.
import { spawn } from "node:child_process";
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";

const OURS = "tap-"; // what our own requests' ids begin with
const record = join(process.env.E2E_TAPS, `${process.pid}.jsonl`);
const note = (from, message) => appendFileSync(record, `${JSON.stringify({ at: Date.now(), from, message })}\n`);

/** The server's hello, as a server of the version in $E2E_TAPS/version would say it, where there is that file. */
function otherwise(message, bytes) {
  const planted = join(process.env.E2E_TAPS, "version");
  if (!existsSync(planted)) return bytes;
  message.result.serverInfo.version = readFileSync(planted, "utf8");
  return framed(message);
}

/** The answer with the planted hunks to a request for a next edit, if it is due. */
function planted({ id, method, params }) {
  const file = join(process.env.E2E_TAPS, "hunks");
  if (method !== "codespec/nextEdit" || !existsSync(file)) return null;
  const edit = { id: "planted", textDocument: params.textDocument, hunks: JSON.parse(readFileSync(file, "utf8")) };
  return { jsonrpc: "2.0", id, result: { edits: [edit], reason: "" } };
}

function framed(message) {
  const body = Buffer.from(JSON.stringify(message));
  return Buffer.concat([Buffer.from(`Content-Length: ${body.length}\r\n\r\n`), body]);
}

/** Calls `take(message, bytes)` for each message of a stream. */
function read(stream, take) {
  let left = Buffer.alloc(0);
  stream.on("data", (data) => {
    left = Buffer.concat([left, data]);
    for (;;) {
      const head = left.indexOf("\r\n\r\n");
      const size = head < 0 ? NaN : Number(/Content-Length: (\d+)/i.exec(left.subarray(0, head).toString())?.[1]);
      if (!(left.length >= head + 4 + size)) return;
      const bytes = left.subarray(0, head + 4 + size);
      left = left.subarray(bytes.length);
      take(JSON.parse(bytes.subarray(head + 4).toString()), bytes);
    }
  });
}

const args = process.argv.slice(2);
await pullAsPlanted();
const speaks = args[0] === "lsp";
const child = spawn(process.env.E2E_SERVER, args, {
  stdio: [speaks ? "pipe" : "inherit", speaks ? "pipe" : "inherit", "inherit"],
});
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => child.kill(signal));
child.once("exit", (code) => process.exit(code ?? 1));
if (speaks) listen();

/** `models pull` says what $E2E_TAPS/pull has, a line at a time, and fetches nothing, where there is that file. */
async function pullAsPlanted() {
  const planted = join(process.env.E2E_TAPS, "pull");
  if (args[1] !== "pull" || !existsSync(planted)) return;
  for (const line of readFileSync(planted, "utf8").split("\n")) {
    process.stderr.write(`${line}\n`);
    await new Promise((resolve) => setTimeout(resolve, 1000)); // long enough to be seen
  }
  process.exit(0);
}

function listen() {
  const asked = new Map();
  let number = 0;
  read(process.stdin, (message, bytes) => {
    note("editor", message);
    const answer = planted(message);
    if (answer) process.stdout.write(framed(answer));
    else child.stdin.write(bytes);
  });
  process.stdin.once("end", () => child.stdin.end());
  read(child.stdout, (message, bytes) => {
    if (String(message.id).startsWith(OURS) && !message.method) {
      asked.get(message.id)?.(message.result);
      asked.delete(message.id);
      return;
    }
    note("server", message);
    process.stdout.write(message.result?.serverInfo ? otherwise(message, bytes) : bytes);
  });
  const server = createServer(async (_request, response) => {
    const id = `${OURS}${++number}`;
    const answer = new Promise((resolve) => asked.set(id, resolve));
    child.stdin.write(framed({ jsonrpc: "2.0", id, method: "codespec/status", params: {} }));
    response.end(JSON.stringify(await answer));
  });
  server.listen(0, "127.0.0.1", () => note("tap", { port: server.address().port, server: child.pid, args }));
}
