/**
 * Sends completion requests and handles the keys that accept a completion. There is one request at a time: a newer one
 * ends the older one here and, because it has the same document name, in the daemon.
 */

import { type EditorState, Prec, type Extension } from "@codemirror/state";
import { EditorView, keymap, type ViewUpdate } from "@codemirror/view";
import { firstWord } from "./along.ts";
import { type Daemon, DaemonError } from "./daemon.ts";
import { ghostField, ghostRest, offer, restRuns } from "./ghost.ts";
import { Trace } from "./trace.ts";
import type { Ask } from "./wire.ts";
import { forget, KEPT_MS, written, writtenField } from "./written.ts";

const PAUSE_MS = 90; // between the last key and the request
const MAX_SIDE = 60_000; // characters on each side of the cursor; the daemon accepts 64 Ki

/** Receives a completion's progress, for the page. */
export interface Watcher {
  /** Called when a completion begins, grows or ends. */
  traced(trace: Trace): void;
  failed(error: DaemonError): void;
  accepted(text: string): void;
}

export interface Choices {
  readonly shape: string;
  readonly tokens: number;
  readonly automatic: boolean;
  readonly speculate: boolean;
}

export interface Place {
  readonly language: string;
  readonly path: string;
}

export class Completer {
  place: Place = { language: "", path: "" };
  private readonly document = `page:${crypto.randomUUID?.() ?? Math.random().toString(36).slice(2)}`;
  private version = 0;
  private timer = 0;
  private running: AbortController | null = null;

  constructor(
    private readonly daemon: Daemon,
    private readonly watcher: Watcher,
    private readonly choices: () => Choices,
  ) {}

  /** Returns the editor's extension: ghost text, the colours of accepted text, the keys. */
  extension(): Extension {
    const keys = Prec.highest(
      keymap.of([
        { key: "Tab", run: (view) => this.accept(view, ghostRest(view.state)) },
        { key: "Ctrl-ArrowRight", run: (view) => this.accept(view, firstWord(ghostRest(view.state))) },
        { key: "Alt-ArrowRight", run: (view) => this.accept(view, firstWord(ghostRest(view.state))) },
        { key: "Escape", run: (view) => this.dismiss(view) },
        { key: "Ctrl-Space", run: (view) => this.ask(view, "manual") },
      ]),
    );
    return [ghostField, writtenField, keys, EditorView.updateListener.of((update) => this.follow(update))];
  }

  /** Sends a request now. */
  ask(view: EditorView, trigger: string): true {
    this.stop();
    const { state } = view;
    const anchor = state.selection.main.head;
    if (state.field(ghostField)) view.dispatch({ effects: offer.of(null) });
    void this.run(view, this.describe(state, anchor, trigger), anchor);
    return true;
  }

  /**
   * Repeats the request without drafts and without ghost text. Returns null, after reporting it, if the daemon failed.
   */
  async compare({ ask: guessed }: Trace): Promise<Trace | null> {
    const ask = { ...guessed, speculate: false };
    const trace = new Trace(performance.now(), ask);
    try {
      for await (const event of this.daemon.complete(ask, new AbortController().signal)) {
        trace.add(event, performance.now());
      }
    } catch (error) {
      this.tell(error);
      return null;
    }
    return trace;
  }

  /** Ends the current request and hides the ghost text. */
  stop(): void {
    clearTimeout(this.timer);
    this.running?.abort();
    this.running = null;
  }

  private async run(view: EditorView, ask: Ask, anchor: number): Promise<void> {
    const running = (this.running = new AbortController());
    const trace = new Trace(performance.now(), ask);
    try {
      for await (const event of this.daemon.complete(ask, running.signal)) {
        if (running.signal.aborted) return;
        trace.add(event, performance.now());
        const ended = event.name === "done";
        if (event.name !== "round") {
          view.dispatch({ effects: offer.of({ anchor, text: trace.text, runs: trace.runs(), ended }) });
        }
        this.watcher.traced(trace);
        if (event.name !== "round" && !this.fits(view)) return;
      }
    } catch (error) {
      if (running.signal.aborted) return;
      if (view.state.field(ghostField)) view.dispatch({ effects: offer.of(null) });
      this.tell(error);
    }
  }

  /** Handles a change: the user typed along the ghost text, or a new request is needed. */
  private follow(update: ViewUpdate): void {
    if (!update.docChanged && !update.selectionSet) return;
    const ghost = update.state.field(ghostField);
    if (ghost && (ghost.rest || !ghost.ended)) return;
    this.stop();
    const wrote = update.transactions.some((one) => one.isUserEvent("input"));
    if (update.docChanged && wrote) this.later(update.view);
  }

  /** Returns whether the typed text matches a part of the completion. If not, sends the next request. */
  private fits(view: EditorView): boolean {
    const ghost = view.state.field(ghostField);
    if (ghost && (ghost.rest || !ghost.ended || !ghost.text)) return true;
    this.stop();
    this.later(view);
    return false;
  }

  private later(view: EditorView): void {
    if (!this.choices().automatic) return;
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.ask(view, "automatic"), PAUSE_MS);
  }

  private accept(view: EditorView, text: string): boolean {
    const ghost = view.state.field(ghostField);
    if (!ghost || !text) return false;
    const when = performance.now();
    const runs = restRuns(ghost)
      .filter((run) => run.from < text.length)
      .map((run) => ({ ...run, to: Math.min(run.to, text.length) }));
    view.dispatch({
      changes: { from: ghost.head, insert: text },
      selection: { anchor: ghost.head + text.length },
      effects: written.of({ at: ghost.head, runs, when }),
      userEvent: "input.complete",
      scrollIntoView: true,
    });
    setTimeout(() => view.dispatch({ effects: forget.of(when) }), KEPT_MS);
    this.watcher.accepted(text);
    return true;
  }

  private dismiss(view: EditorView): boolean {
    const shown = ghostRest(view.state) !== "";
    this.stop();
    if (view.state.field(ghostField)) view.dispatch({ effects: offer.of(null) });
    return shown;
  }

  private describe(state: EditorState, anchor: number, trigger: string): Ask {
    const from = Math.max(0, anchor - MAX_SIDE);
    const { shape, tokens, speculate } = this.choices();
    return {
      document: this.document,
      version: (this.version += 1),
      ...this.place,
      prefix: state.sliceDoc(from, anchor).toWellFormed(),
      prefix_offset: from,
      suffix: state.sliceDoc(anchor, anchor + MAX_SIDE).toWellFormed(),
      trigger,
      shape,
      max_tokens: tokens,
      ...(speculate ? {} : { speculate }),
    };
  }

  private tell(error: unknown): void {
    if (!(error instanceof DaemonError)) throw error;
    this.watcher.failed(error);
  }
}
