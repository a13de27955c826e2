/**
 * One completion as it grew: its text, its rounds, and who wrote which characters. Knows events; shows nothing.
 *
 * A round tells what was guessed, what of it the target agreed with, and what the target wrote itself; joined in order
 * these are the text, of which the daemon may yet keep back or cut away the end.
 */

import type { Ask, CompletionEvent, Done, Round } from "./wire.ts";

/**
 * `suffix`: copied from text that was there; `client`: the editor's own guess; `head`: a network that reads the
 * target's states; `untold`: the daemon had this text ready and told no rounds of it.
 */
export type Author = "suffix" | "client" | "drafter" | "head" | "target" | "untold";

/** Characters `from` to `to` of the text, by one author in one round. */
export interface Run {
  readonly from: number;
  readonly to: number;
  readonly author: Author;
  readonly round: number;
}

/** A round and when it came: milliseconds since the request was sent. */
export interface TimedRound extends Round {
  readonly at: number;
}

/** By the daemon's name of a source; any other is a drafter's. */
const AUTHORS: Readonly<Record<string, Author>> = {
  suffix: "suffix",
  prediction: "client",
  eagle3: "head",
  dflash: "head",
};

export function authorOf(source: string): Author {
  return AUTHORS[source] ?? "drafter";
}

/** What the target did not agree with. */
export function rejected(round: Round): string {
  return round.draft.slice(round.accepted_text.length);
}

/** A text in parts, those with something to see and, apart, line breaks with the indentation behind them. */
export function inkAndBlank(text: string): string[] {
  return text.split(/(\n\s*|^\s+)/).filter(Boolean);
}

export class Trace {
  text = "";
  readonly rounds: TimedRound[] = [];
  done: Done | null = null;
  private told = 0;
  private readonly marks: Run[] = [];

  /** `began` is when it was asked for, in milliseconds of any clock. */
  constructor(
    private readonly began: number,
    readonly ask: Ask,
  ) {}

  add(event: CompletionEvent, now: number): void {
    if (event.name === "text") this.text += event.text;
    else if (event.name === "done") this.done = event.done;
    else this.addRound(event.round, now);
  }

  /** The runs of the text from a place on, in order and without gaps. */
  runs(from = 0): Run[] {
    const end = this.text.length;
    const found = this.marks
      .filter((run) => run.to > from && run.from < end)
      .map((run) => ({ ...run, from: Math.max(run.from, from), to: Math.min(run.to, end) }));
    const known = Math.max(from, Math.min(this.told, end));
    if (known < end) found.push({ from: known, to: end, author: "untold", round: -1 });
    return found;
  }

  /** The text as it stood when a round began. */
  textBefore(round: number): Run[] {
    return this.marks.filter((run) => run.round < round);
  }

  /** The characters of a run, also of one that the daemon keeps back so far. */
  spelled(run: Run): string {
    const round = this.rounds[run.round];
    if (!round) return this.text.slice(run.from, run.to);
    return run.author === "target" ? round.target_text : round.accepted_text;
  }

  private addRound(round: Round, now: number): void {
    const place = this.rounds.push({ ...round, at: now - this.began }) - 1;
    this.mark(round.accepted_text, authorOf(round.source), place);
    this.mark(round.target_text, "target", place);
  }

  private mark(text: string, author: Author, round: number): void {
    if (!text) return;
    this.marks.push({ from: this.told, to: this.told + text.length, author, round });
    this.told += text.length;
  }
}
