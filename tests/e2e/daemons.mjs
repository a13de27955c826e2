// A real `codespec serve` for browser tests: starts it on a free port, and stops what it started.
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

export const root = join(dirname(fileURLToPath(import.meta.url)), "../..");

/** Starts a daemon with these flags and variables; resolves as soon as it listens, long before it is ready. */
export async function serve(flags = [], variables = {}) {
  const folder = await mkdtemp(join(tmpdir(), "codespec-page-"));
  const env = { ...process.env, XDG_STATE_HOME: folder, XDG_CACHE_HOME: folder, ...variables };
  const child = spawn(join(root, ".venv/bin/codespec"), ["serve", "--port", "0", ...flags], { cwd: root, env });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  let said = "";
  child.stderr.on("data", (data) => (said += data));
  const lines = createInterface({ input: child.stdout });
  const line = (words) =>
    new Promise((resolve, reject) => {
      lines.on("line", (text) => words.test(text) && resolve(words.exec(text)[1]));
      child.once("exit", (code) => reject(new Error(`codespec serve ended with ${code}: ${said}`)));
    });
  const [listening, ready] = [line(/listening on (\S+)/), line(/ready after (\S+)/)];
  ready.catch(() => {}); // told where somebody waits for it
  const stop = async (signal = "SIGTERM") => {
    child.kill(signal);
    const code = await ended;
    await rm(folder, { recursive: true, force: true });
    return code;
  };
  return { url: await listening, ready, stop, folder };
}
