/** The client of the daemon that serves this page: its health and its completions. */

import { EventReader } from "./sse.ts";
import type { Ask, CompletionEvent } from "./wire.ts";

const TOKEN = "codespec-token"; // its key in sessionStorage, which is deleted with the tab
const AWAY = "The daemon does not answer: start it with codespec serve.";

type Piece = ReadableStreamReadResult<string>;

export interface Health {
  readonly state: "ready" | "idle" | "starting" | "error" | "token" | "away";
  readonly said: string;
}

/** An error with the daemon's sentence. `status` is the HTTP status, or 0 if the daemon did not answer. */
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

  /** Stores the token for this tab only. */
  useToken(token: string): void {
    sessionStorage.setItem(TOKEN, token.trim());
  }

  /** Returns the daemon's state, with its model's name or an error sentence. */
  async health(): Promise<Health> {
    try {
      const { idle } = (await (await this.fetch("/health")).json()) as { idle: boolean };
      const props = (await (await this.fetch("/props")).json()) as { model_alias: string; total_slots: number };
      return { state: idle ? "idle" : "ready", said: props.model_alias };
    } catch (error) {
      if (!(error instanceof DaemonError)) throw error;
      return { state: stateOf(error), said: error.message };
    }
  }

  /** Yields the events of one completion. Aborting the signal stops the daemon's work. */
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

/** Returns the next piece of a stream. Throws DaemonError if the connection broke. */
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

/** Parses one event of codespec's own endpoint. Throws DaemonError for an error event. */
export function read(name: string, data: string): CompletionEvent {
  const value = JSON.parse(data);
  if (name === "text") return { name, text: value.text };
  if (name === "round") return { name, round: value };
  if (name === "done") return { name, done: value };
  throw new DaemonError(200, value.message);
}
