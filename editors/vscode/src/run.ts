/** Runs a program to its end, line by line, and ends it with its children when the signal comes. Knows processes. */

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

/** The exit code (-1 where it can't be started) and what it said. Raises Cancelled when the signal comes. */
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

/** Calls back with each whole line of a stream, and with the last one however it ends. */
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

/** pip has children of its own: all of them end. */
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
