/**
 * The language server's process and the connection to it: starts it, watches it, and restarts it a few times.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { mkdirSync } from "node:fs";
import {
  type CancellationToken,
  EventEmitter,
  type InlineCompletionItem,
  type LogOutputChannel,
  type Position,
  type TextDocument,
} from "vscode";
import {
  CloseAction,
  ErrorAction,
  InlineCompletionRequest,
  InlineCompletionTriggerKind,
  LanguageClient,
  type LanguageClientOptions,
  type Middleware,
  type StaticFeature,
} from "vscode-languageclient/node";
import type { Explained } from "./explanation.ts";
import { type Found, findServer } from "./find_server.ts";
import { machine } from "./machine.ts";
import type { Answer, Trigger } from "./next_edits.ts";
import { MAX, Restarts } from "./restarts.ts";
import { readLines } from "./run.ts";
import { forServer, settings } from "./settings.ts";
import type { Figures, Process, Told } from "./status.ts";
import { versionFault } from "./versions.ts";

const START_MS = 60_000; // a program that is not a language server never answers
const STOP_MS = 2000;
const MISSING = "The codespec server is not installed: install it, or set codespec.command.";

/** `MoreGate` extends what is shown, so the server may answer with the first words. */
const SHOWS_MORE: StaticFeature = {
  fillClientCapabilities(capabilities) {
    capabilities.experimental = { codespec: { more: true } };
  },
  initialize() {},
  getState: () => ({ kind: "static" }),
  clear() {},
};

/** Errors of the client go to the log; the extension reports problems in one sentence. */
class Client extends LanguageClient {
  override error(message: string, data?: unknown): void {
    super.error(message, data, false);
  }
}

/** The server's notifications. */
export interface Listener {
  told(status: Told): void;
  grown(uri: string, version: number): void;
  offered(offer: unknown): void;
}

/**
 * The extension's version, the folder of its own Python environment, a folder that no workspace can write, and
 * variables for the server's process.
 */
export interface Own {
  readonly version: string;
  readonly environment: string;
  readonly folder: string;
  variables(): Promise<Record<string, string>>;
}

/** One process and its connection. */
interface Life {
  readonly path: string;
  readonly child: ChildProcess;
  readonly client: Client;
  words: string; // the last line on its standard error
}

export class Server {
  process: Process = { kind: "stopped" };
  private readonly changes = new EventEmitter<void>();
  readonly onChange = this.changes.event;
  private readonly restarts = new Restarts();
  private life: Life | undefined;
  private turn: Promise<void> = Promise.resolve();

  constructor(
    private readonly own: Own,
    private readonly log: LogOutputChannel,
    private readonly middleware: Middleware,
    private readonly listener: Listener,
  ) {}

  /** Finds the program now. */
  find(): Found {
    return findServer(settings.command, this.own.environment, machine);
  }

  start(): Promise<void> {
    return this.next(() => this.begin());
  }

  /** Stops the server. The daemon keeps running, for other editors. */
  stop(): Promise<void> {
    this.hurry();
    return this.next(() => this.end());
  }

  /** Starts the server again, with the count of restarts reset. */
  restart(): Promise<void> {
    this.restarts.forget();
    this.hurry();
    return this.next(async () => {
      await this.end();
      await this.begin();
    });
  }

  /** Shows another state in place of the server's, such as an installation. */
  show(process: Process): void {
    this.process = process;
    this.changes.fire();
  }

  async figures(): Promise<Figures> {
    return (await this.life?.client.sendRequest<Figures>("codespec/status", {})) ?? {};
  }

  async explain(): Promise<Explained> {
    const params = { command: "codespec.explain", arguments: [] };
    return (await this.life?.client.sendRequest<Explained>("workspace/executeCommand", params)) ?? {};
  }

  /** Returns all alternatives at a position, as for an explicit request. */
  async alternatives(document: TextDocument, position: Position): Promise<InlineCompletionItem[]> {
    const client = this.life?.client;
    if (!client) return [];
    const found = await client.sendRequest(InlineCompletionRequest.type, {
      textDocument: client.code2ProtocolConverter.asTextDocumentIdentifier(document),
      position: client.code2ProtocolConverter.asPosition(position),
      context: { triggerKind: InlineCompletionTriggerKind.Invoked },
    });
    const items = await client.protocol2CodeConverter.asInlineCompletionResult(found);
    return Array.isArray(items) ? items : (items?.items ?? []);
  }

  /** Returns the next edit of a document, or none without a server. */
  async nextEdit(document: TextDocument, at: Position, trigger: Trigger, token: CancellationToken): Promise<Answer> {
    const client = this.life?.client;
    if (!client) return { edits: [] };
    const { version } = document;
    const textDocument = { ...client.code2ProtocolConverter.asTextDocumentIdentifier(document), version };
    const position = client.code2ProtocolConverter.asPosition(at);
    return client.sendRequest<Answer>("codespec/nextEdit", { textDocument, position, trigger }, token);
  }

  /** Runs a command of the server, if it runs. */
  async run(command: string, given: readonly unknown[]): Promise<void> {
    await this.life?.client.sendRequest("workspace/executeCommand", { command, arguments: given });
  }

  /** Notifies the server that a next edit is on the screen. */
  showed(id: string): void {
    void this.life?.client.sendNotification("codespec/didShowEdit", { id });
  }

  /** Restarts the daemon, with the models that are on the disk now. Returns the reason if that fails, else "". */
  async restartDaemon(): Promise<string> {
    if (!this.life) return "the language server does not run: restart codespec first.";
    const params = { command: "codespec.restartDaemon", arguments: [] };
    const { message } = await this.life.client.sendRequest<{ message: string }>("workspace/executeCommand", params);
    return message;
  }

  /** Notifies the server of the document in use and its cursor, if it runs: it has the prompt there read. */
  focus(uri: string, at: Position): void {
    if (this.process.kind === "running") {
      const position = { line: at.line, character: at.character };
      void this.life?.client.sendNotification("textDocument/didFocus", { textDocument: { uri }, position });
    }
  }

  /** Resolves after a time limit even if the server never becomes ready. */
  private hurry(): void {
    if (this.process.kind === "starting") this.life?.child.kill();
  }

  /** Runs actions one after the other, so that a start never overlaps a stop. */
  private next(act: () => Promise<void>): Promise<void> {
    const done = this.turn.then(act);
    this.turn = done.catch(() => {}); // the caller gets the error; the next action runs anyway
    return done;
  }

  private async begin(): Promise<void> {
    if (this.life) return;
    const found = this.find();
    if (found.kind === "missing") return this.show({ kind: "missing", sentence: MISSING });
    if (found.kind === "wrong") return this.show({ kind: "failed", sentence: found.sentence });
    this.show({ kind: "starting" });
    this.log.info(`starting ${found.path} lsp`);
    const child = await this.spawn(found.path);
    if (child) await this.connect(child, found.path);
  }

  private async connect(child: ChildProcess, path: string): Promise<void> {
    const client = new Client("codespec", "codespec", () => Promise.resolve(child), this.options());
    const life: Life = { path, child, client, words: "" };
    this.life = life;
    client.registerFeature(SHOWS_MORE);
    readLines(child.stderr!, (line) => (life.words = line));
    child.once("close", (code, signal) => void this.next(() => this.ended(life, signal ?? `exit code ${code}`)));
    client.onNotification("didChangeStatus", (status: Told) => this.listener.told(status));
    client.onNotification("codespec/more", ({ uri, version }: { uri: string; version: number }) => {
      this.listener.grown(client.protocol2CodeConverter.asUri(uri).toString(), version);
    });
    client.onNotification("codespec/offer", (offer: unknown) => this.listener.offered(offer));
    const late = setTimeout(() => child.kill(), START_MS);
    try {
      await client.start();
      this.show(this.running(life));
    } catch (error) {
      this.log.error(`no connection to the server: ${String(error)}`);
      child.kill();
    } finally {
      clearTimeout(late);
    }
  }

  private running({ client, path }: Life): Process {
    const version = client.initializeResult?.serverInfo?.version ?? "";
    const own = path.startsWith(this.own.environment);
    return { kind: "running", version, fault: versionFault(this.own.version, { version, path, own }) };
  }

  private options(): LanguageClientOptions {
    return {
      documentSelector: [{ scheme: "file" }, { scheme: "untitled" }],
      initializationOptions: forServer(),
      synchronize: { configurationSection: "codespec" },
      outputChannel: this.log,
      middleware: this.middleware,
      initializationFailedHandler: () => false,
      errorHandler: {
        error: () => ({ action: ErrorAction.Continue, handled: true }),
        closed: () => ({ action: CloseAction.DoNotRestart, handled: true, message: "The connection is closed." }),
      },
    };
  }

  /** Returns undefined, after reporting the error, if the program can't be started. */
  private async spawn(path: string): Promise<ChildProcess | undefined> {
    const { folder: cwd } = this.own;
    mkdirSync(cwd, { recursive: true });
    const env = { ...process.env, ...(await this.own.variables()) };
    const child = spawn(path, ["lsp"], { cwd, env, stdio: "pipe", windowsHide: true });
    const error = await new Promise<Error | null>((resolve) => {
      child.once("spawn", () => resolve(null));
      child.once("error", resolve);
    });
    if (!error) return child;
    this.show({ kind: "failed", sentence: `${path} can't be started (${error.message}): correct codespec.command.` });
    return undefined;
  }

  /** Handles an unexpected end of the process. */
  private async ended(life: Life, how: string): Promise<void> {
    if (this.life !== life) return;
    this.life = undefined;
    await this.dispose(life);
    const words = life.words.replace(/^codespec: /, "").replace(/\.$/, "") || how;
    this.log.error(`the server ended: ${words}`);
    if (this.restarts.allow(Date.now())) return this.begin();
    this.show({ kind: "failed", sentence: `The language server ended ${MAX + 1} times (${words}): see the log.` });
  }

  private async end(): Promise<void> {
    const { life } = this;
    this.life = undefined;
    if (life) await this.dispose(life);
    this.show({ kind: "stopped" });
  }

  private async dispose({ client, child }: Life): Promise<void> {
    try {
      await client.dispose(STOP_MS);
    } catch (error) {
      this.log.warn(`the server did not leave in good order: ${String(error)}`);
    }
    if (child.exitCode === null) child.kill();
  }
}
