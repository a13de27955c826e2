/** The daemon behind this page: its health and its completions. Knows HTTP and the token; shows nothing. */

import { EventReader } from "./sse.ts";
import type { Ask, CompletionEvent } from "./wire.ts";

const TOKEN = "codespec-token"; // its place in sessionStorage: gone when the tab is
const AWAY = "The daemon does not answer: start it with codespec serve.";

type Piece = ReadableStreamReadResult<string>;

export interface Health {
  readonly state: "ready" | "starting" | "error" | "token" | "away";
  readonly said: string;
}

/** A sentence of the daemon's about what it did not do. `status` is HTTP's, or 0 where nothing answered. */
export class DaemonError extends Error {
  constructor(
    readonly status: number,
    said: string,
    readonly waits: boolean = false,
  ) {
    super(said);
  }
}

export class Daemon {
  private get token(): string {
    return sessionStorage.getItem(TOKEN) ?? "";
  }

  /** Keeps the token for this tab only. */
  useToken(token: string): void {
    sessionStorage.setItem(TOKEN, token.trim());
  }

  /** Whether it is ready, and its own sentence where it is not. */
  async health(): Promise<Health> {
    try {
      await this.fetch("/health");
      const props = (await (await this.fetch("/props")).json()) as { model_alias: string; total_slots: number };
      return { state: "ready", said: props.model_alias };
    } catch (error) {
      if (!(error instanceof DaemonError)) throw error;
      return { state: stateOf(error), said: error.message };
    }
  }

  /** The events of one completion as they come. Aborting the signal stops the daemon's work. */
  async *complete(ask: Ask, signal: AbortSignal): AsyncGenerator<CompletionEvent> {
    const reply = await this.fetch("/v1/codespec/complete", { method: "POST", body: JSON.stringify(ask), signal });
    if (!reply.body) return;
    const events = new EventReader();
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let last = "";
    for (let piece = await next(reader, signal); !piece.done; piece = await next(reader, signal)) {
      for (const event of events.push(piece.value)) yield read((last = event.name), event.data);
    }
    if (last !== "done") throw new DaemonError(0, AWAY);
  }

  private async fetch(path: string, init: RequestInit = {}): Promise<Response> {
    const headers: Record<string, string> = this.token ? { Authorization: `Bearer ${this.token}` } : {};
    let reply: Response;
    try {
      reply = await fetch(path, { ...init, headers, cache: "no-store", credentials: "omit" });
    } catch (error) {
      if (init.signal?.aborted) throw error;
      throw new DaemonError(0, AWAY);
    }
    if (reply.ok) return reply;
    throw new DaemonError(reply.status, await sentence(reply), reply.headers.has("Retry-After"));
  }
}

/** The next piece of a stream. Throws DaemonError where the connection broke. */
async function next(reader: ReadableStreamDefaultReader<string>, signal: AbortSignal): Promise<Piece> {
  try {
    return await reader.read();
  } catch (error) {
    if (signal.aborted) throw error;
    throw new DaemonError(0, AWAY);
  }
}

function stateOf(error: DaemonError): Health["state"] {
  if (error.status === 0) return "away";
  if (error.status === 401) return "token";
  return error.status === 503 && error.waits ? "starting" : "error";
}

async function sentence(reply: Response): Promise<string> {
  const text = await reply.text();
  try {
    return (JSON.parse(text) as { error: { message: string } }).error.message;
  } catch (error) {
    if (!(error instanceof SyntaxError || error instanceof TypeError)) throw error;
    return `The daemon answered ${reply.status}, and not in its own words: check what listens on this port.`;
  }
}

/** One event of codespec's own endpoint. Throws DaemonError for the daemon's own error in mid-stream. */
export function read(name: string, data: string): CompletionEvent {
  const value = JSON.parse(data);
  if (name === "text") return { name, text: value.text };
  if (name === "round") return { name, round: value };
  if (name === "done") return { name, done: value };
  throw new DaemonError(200, value.message);
}
