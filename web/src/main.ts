/** The page: connects the editor, the daemon, and the parts that show the daemon's work. */

import type { EditorState } from "@codemirror/state";
import type { EditorView } from "@codemirror/view";
import { type Choices, Completer, type Watcher } from "./completer.ts";
import { Daemon, type DaemonError } from "./daemon.ts";
import { element, part } from "./dom.ts";
import { lightRound, openEditor, openState, showState } from "./editor.ts";
import { Figures } from "./figures.ts";
import { LANGUAGES, type Language } from "./languages.ts";
import { RECORDED_OF, recorded } from "./recorded.ts";
import { StateLine } from "./state.ts";
import { startTheme } from "./theme.ts";
import { Timeline } from "./timeline.ts";
import type { Trace } from "./trace.ts";
import type { Done } from "./wire.ts";

class Page implements Watcher {
  private readonly daemon = new Daemon();
  private readonly state = new StateLine(this.daemon, () => this.completer.ask(this.view, "open"));
  private readonly completer = new Completer(this.daemon, this, readChoices);
  private readonly figures = new Figures();
  private readonly timeline: Timeline;
  private readonly view: EditorView;
  private readonly drafts = new Map<Language, EditorState>(); // the documents of the other languages
  private language: Language = LANGUAGES[0]!;
  private last: Trace | null = null; // the last trace with rounds

  constructor() {
    const chooser = part<HTMLSelectElement>("language");
    chooser.append(...LANGUAGES.map(({ id, name }) => element("option", { value: id }, name)));
    this.view = openEditor(part("editor"), this.open(this.language));
    this.timeline = new Timeline((round) => lightRound(this.view, round));
    chooser.addEventListener("change", () => this.change(chooser.value));
    part("reset").addEventListener("click", () => this.show(this.open(this.language)));
    part("complete").addEventListener("click", () => this.complete());
    part("compare").addEventListener("click", () => void this.compare());
    for (const id of ["shape", "tokens", "guesses"]) part(id).addEventListener("change", () => this.ask());
  }

  start(): void {
    startTheme();
    this.place();
    showState(this.view, this.view.state);
    this.view.focus();
    this.showRecorded();
    void this.state.look();
  }

  traced(trace: Trace): void {
    this.state.fine();
    part("hint").textContent = trace.done && !trace.text ? nothing(trace.done) : "";
    if (!trace.rounds.length) return;
    part("same").textContent = "";
    if (!this.last) part("ended").textContent = "";
    this.last = trace;
    this.timeline.show(trace);
    this.figures.show(trace);
    part<HTMLButtonElement>("compare").disabled = !trace.done;
    if (trace.done) this.announce(trace);
  }

  failed(error: DaemonError): void {
    this.state.failed(error);
  }

  accepted(text: string): void {
    part("live").textContent = `Accepted ${text}`;
  }

  /** Shows the recorded completion until this visit has one. It is not counted in the figures. */
  private showRecorded(): void {
    const trace = recorded();
    part("panel").classList.remove("idle");
    const most = Math.max(...trace.rounds.map((round) => round.accepted));
    this.timeline.show(trace, trace.rounds.findIndex((round) => round.accepted === most));
    new Figures().show(trace);
    part("contexts").replaceChildren(element("p", { class: "soft" }, "Nothing was guessed yet."));
    part("ended").textContent = `an example, recorded with ${RECORDED_OF}`;
  }

  private announce(trace: Trace): void {
    part("live").textContent = trace.text ? `Suggestion: ${trace.text}. Tab accepts.` : "Nothing to suggest here.";
    part("ended").textContent = trace.done ? ending(trace.done) : "";
  }

  private async compare(): Promise<void> {
    const button = part<HTMLButtonElement>("compare");
    const guessed = this.last;
    if (!guessed?.done) return;
    button.disabled = true;
    button.textContent = "The big model alone …";
    const plain = await this.completer.compare(guessed);
    button.disabled = false;
    button.textContent = "Measure the big model alone";
    if (!plain?.done || this.last !== guessed) return;
    this.figures.compare(guessed.done.stats, plain.done.stats);
    part("same").textContent =
      plain.text === guessed.text ? "Same text, character by character." : "The texts differ: please report it.";
  }

  private complete(): void {
    this.view.focus(); // Tab then accepts; a setting changed by keyboard keeps the focus
    this.ask();
  }

  private ask(): void {
    this.completer.ask(this.view, "manual");
  }

  private change(id: string): void {
    this.drafts.set(this.language, this.view.state);
    this.language = LANGUAGES.find((one) => one.id === id) ?? this.language;
    this.show(this.drafts.get(this.language) ?? this.open(this.language));
  }

  private show(state: EditorState): void {
    this.completer.stop();
    showState(this.view, state);
    this.place();
    this.ask();
  }

  private place(): void {
    this.completer.place = { language: this.language.id, path: this.language.path };
    part("path").textContent = this.language.path;
  }

  private open(language: Language): EditorState {
    return openState(language, this.completer.extension());
  }
}

/** Returns the reason that a text ended. */
function ending({ finish_reason, stats }: Done): string {
  return stats.ended || (finish_reason === "length" ? "as long as asked for" : finish_reason);
}

function nothing(done: Done): string {
  return `Nothing to suggest here: ${ending(done)}.`;
}

function readChoices(): Choices {
  return {
    shape: part<HTMLSelectElement>("shape").value,
    tokens: Number(part<HTMLSelectElement>("tokens").value),
    automatic: part<HTMLInputElement>("automatic").checked,
    speculate: part<HTMLInputElement>("guesses").checked,
  };
}

new Page().start();
