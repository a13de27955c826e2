/** Runs a program and reads its output line by line; a signal ends it with its children. */

import { type ChildProcess, spawn } from "node:child_process";

export interface Ended {
  readonly code: number;
  readonly lines: readonly string[];
}

export interface Running {
  readonly cwd: string;
  readonly signal?: AbortSignal;
  readonly onLine?: (line: string) => void;
  readonly seconds?: number;
}

export class Cancelled extends Error {}

/** Returns the exit code (-1 if it can't be started) and the output. Throws Cancelled on the signal. */
export async function run(path: string, args: readonly string[], how: Running): Promise<Ended> {
  if (how.signal?.aborted) throw new Cancelled();
  const windows = process.platform === "win32";
  const child = spawn(path, args, {
    cwd: how.cwd,
    stdio: ["ignore", "pipe", "pipe"],
    detached: !windows,
    windowsHide: true,
  });
  const lines: string[] = [];
  const take = (line: string): void => {
    lines.push(line);
    how.onLine?.(line);
  };
  readLines(child.stdout, take);
  readLines(child.stderr, take);
  const stop = (): void => end(child, windows);
  const timer = how.seconds === undefined ? undefined : setTimeout(stop, how.seconds * 1000);
  how.signal?.addEventListener("abort", stop, { once: true });
  try {
    const code = await ending(child, take);
    if (how.signal?.aborted) throw new Cancelled();
    return { code, lines };
  } finally {
    clearTimeout(timer);
    how.signal?.removeEventListener("abort", stop);
  }
}

/** Calls back with each line of a stream, including a last one without a line end. */
export function readLines(stream: NodeJS.ReadableStream, take: (line: string) => void): void {
  let rest = "";
  stream.setEncoding("utf8");
  stream.on("data", (piece: string) => {
    const lines = (rest + piece).split(/\r\n|\n|\r/);
    rest = lines.pop() ?? "";
    for (const line of lines) if (line.trim()) take(line);
  });
  stream.on("end", () => {
    if (rest.trim()) take(rest);
  });
}

function ending(child: ChildProcess, take: (line: string) => void): Promise<number> {
  return new Promise((resolve) => {
    child.on("error", (error) => {
      take(error.message);
      resolve(-1);
    });
    child.on("close", (code) => resolve(code ?? -1));
  });
}

/** Ends the process with its children, which pip has. */
function end(child: ChildProcess, windows: boolean): void {
  if (child.pid === undefined) return;
  if (windows) {
    spawn("taskkill", ["/pid", String(child.pid), "/t", "/f"], { windowsHide: true, stdio: "ignore" });
    return;
  }
  try {
    process.kill(-child.pid, "SIGTERM");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}
