/**
 * The rounds of one completion: one bar for each, and the details of the selected one.
 *
 * The height of a bar is the length of its draft: filled for accepted tokens, hollow for rejected ones. The square
 * below is the target's own token. The bars are one stop of the Tab key; the arrow keys move between them.
 */

import { element, part, size } from "./dom.ts";
import { type Author, authorOf, inkAndBlank, rejected, type TimedRound, type Trace } from "./trace.ts";

const STEP_MS = 650; // for a round of the slow replay
const TAIL = 500; // characters before the cursor that the details show

const NAMES: Record<Author, string> = {
  suffix: "copied",
  client: "the editor's guess",
  drafter: "small model",
  head: "head",
  target: "big model alone",
  untold: "ready text",
};

export class Timeline {
  private readonly bars = part("rounds");
  private readonly facts = part("round-facts");
  private readonly story = part("story");
  private readonly reason = part("reason");
  private readonly play = part<HTMLButtonElement>("play");
  private trace: Trace | null = null;
  private shown = -1; // the selected round
  private pinned = false; // selected by a click or an arrow key, so new rounds do not change the selection
  private timer = 0;

  constructor(private readonly point: (round: number | null) => void) {
    this.bars.addEventListener("pointerover", (event) => this.hover(event.target));
    this.bars.addEventListener("pointerleave", () => this.point(null));
    this.bars.addEventListener("click", (event) => this.hover(event.target));
    this.bars.addEventListener("focusin", (event) => this.hover(event.target));
    this.bars.addEventListener("keydown", (event) => this.walk(event));
    this.play.addEventListener("click", () => (this.timer ? this.pause() : this.replay()));
  }

  /** Shows a trace or its new rounds, and the details of one round, by default the last. */
  show(trace: Trace, told = trace.rounds.length - 1): void {
    if (trace !== this.trace) this.clear(trace);
    const tallest = Math.max(...trace.rounds.map((round) => round.drafted), 4);
    size(this.bars, "--tallest", tallest);
    this.bars.classList.toggle("few", trace.rounds.length <= 18);
    for (const round of trace.rounds.slice(this.bars.childElementCount)) {
      this.bars.append(bar(round, this.bars.childElementCount));
    }
    if (!this.pinned && !this.timer) this.tell(told);
    this.play.disabled = trace.rounds.length === 0;
  }

  private clear(trace: Trace): void {
    this.pause();
    this.trace = trace;
    this.bars.replaceChildren();
    this.shown = -1;
    this.pinned = false;
  }

  private hover(target: EventTarget | null): void {
    const found = target instanceof Element ? target.closest<HTMLElement>("[data-round]") : null;
    if (!found) return;
    this.pause();
    this.pinned = true;
    this.tell(Number(found.dataset["round"]));
    this.point(this.shown);
  }

  private walk(event: KeyboardEvent): void {
    const last = this.bars.childElementCount - 1;
    const places: Record<string, number> = {
      ArrowRight: this.shown + 1,
      ArrowLeft: this.shown - 1,
      Home: 0,
      End: last,
    };
    const place = places[event.key];
    if (place === undefined) return;
    event.preventDefault();
    (this.bars.children[Math.min(last, Math.max(0, place))] as HTMLElement | undefined)?.focus();
  }

  /** Shows the rounds one after the other, slowly enough to read. */
  private replay(): void {
    const rounds = this.trace?.rounds.length ?? 0;
    if (!rounds) return;
    this.pinned = true;
    this.play.textContent = "Pause";
    let next = this.shown + 1 < rounds && this.shown >= 0 ? this.shown + 1 : 0;
    const step = (): void => {
      if (next >= rounds) return this.pause();
      this.tell(next++);
      this.point(this.shown);
      this.timer = window.setTimeout(step, STEP_MS);
    };
    step();
  }

  private pause(): void {
    clearTimeout(this.timer);
    this.timer = 0;
    this.play.textContent = "Replay slowly";
    this.point(null);
  }

  private tell(place: number): void {
    const round = this.trace?.rounds[place];
    this.bars.children[this.shown]?.classList.remove("shown");
    this.bars.children[this.shown]?.setAttribute("tabindex", "-1");
    this.shown = place;
    if (!round || !this.trace) return;
    const shown = this.bars.children[place];
    shown?.classList.add("shown");
    shown?.setAttribute("tabindex", "0");
    this.facts.replaceChildren(...factsOf(round, place, this.trace.rounds.length));
    this.story.replaceChildren(...storyOf(this.trace, round, place));
    this.story.scrollTop = this.story.scrollHeight;
    this.reason.textContent = round.reason ? `Why this far: ${round.reason}` : "";
  }
}

function bar(round: TimedRound, place: number): HTMLElement {
  const author = round.drafted ? authorOf(round.source) : "target";
  const made = element(
    "button",
    { class: `round by-${author}`, tabindex: "-1", "data-round": String(place) },
    size(
      element("span", { class: "draft" }, size(element("span", { class: "kept" }), "--n", round.accepted)),
      "--n",
      round.drafted,
    ),
    element("span", { class: round.target_text ? "token" : "token none" }),
  );
  const said = round.drafted ? `${NAMES[author]}, ${round.accepted} of ${round.drafted} tokens right` : NAMES.target;
  made.setAttribute("aria-label", `Step ${place + 1}: ${said}`);
  return made;
}

function factsOf(round: TimedRound, place: number, count: number): HTMLElement[] {
  const author = round.drafted ? authorOf(round.source) : "target";
  const facts = [
    element("span", { class: "which" }, `Step ${place + 1} of ${count}`),
    element("span", { class: `chip by-${author}` }, NAMES[author]),
  ];
  if (round.context !== "unknown") facts.push(element("span", { class: "fact" }, round.context.replace("_", " ")));
  const right = `${round.accepted} of ${round.drafted} tokens right`;
  if (round.drafted) facts.push(element("span", { class: "fact" }, right));
  facts.push(element("span", { class: "fact" }, `${round.at.toFixed(0)} ms`));
  return facts;
}

/** Returns the text so far, the draft (rejected text struck through), and the target's own token. */
function storyOf(trace: Trace, round: TimedRound, place: number): HTMLElement[] {
  const before = element("span", { class: "before" }, trace.ask.prefix.slice(-TAIL));
  const told = trace
    .textBefore(place)
    .map((run) => element("span", { class: `past by-${run.author}` }, trace.spelled(run)));
  const now: HTMLElement[] = [];
  const add = (author: Author, text: string): void => {
    for (const part of inkAndBlank(text)) {
      now.push(element("span", { class: part.trim() ? `now by-${author}` : "" }, part));
    }
  };
  const author = authorOf(round.source);
  add(author, round.accepted_text);
  const refused = rejected(round);
  if (refused) now.push(element("s", { class: `refused by-${author}` }, visible(refused)));
  add("target", round.target_text);
  return [before, ...told, ...now];
}

/** Shows a rejected line break as a symbol. */
function visible(text: string): string {
  return text.replaceAll("\n", "⏎");
}
