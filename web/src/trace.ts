/**
 * The course of one completion: its text, its rounds, and the source of each character.
 *
 * A round has the draft, its accepted part, and the target's own token. Accepted parts and own tokens, joined in order,
 * are the text, whose end the daemon may still hold back or cut.
 */

import type { Ask, CompletionEvent, Done, Round } from "./wire.ts";

/**
 * `suffix`: copied from earlier text; `client`: the editor's prediction; `head`: a network that reads the target's
 * hidden states; `untold`: the daemon had this text ready and sent no rounds for it.
 */
export type Author = "suffix" | "client" | "drafter" | "head" | "target" | "untold";

/** Characters `from` to `to` of the text, from one source in one round. */
export interface Run {
  readonly from: number;
  readonly to: number;
  readonly author: Author;
  readonly round: number;
}

/** A round and its time, in milliseconds since the request. */
export interface TimedRound extends Round {
  readonly at: number;
}

/** Authors by the daemon's name of the source; any other name is a drafter's. */
const AUTHORS: Readonly<Record<string, Author>> = {
  suffix: "suffix",
  prediction: "client",
  eagle3: "head",
  dflash: "head",
};

export function authorOf(source: string): Author {
  return AUTHORS[source] ?? "drafter";
}

/** Returns the rejected part of a draft. */
export function rejected(round: Round): string {
  return round.draft.slice(round.accepted_text.length);
}

/** Splits a text into visible parts and line breaks with the indentation after them. */
export function inkAndBlank(text: string): string[] {
  return text.split(/(\n\s*|^\s+)/).filter(Boolean);
}

export class Trace {
  text = "";
  readonly rounds: TimedRound[] = [];
  done: Done | null = null;
  private told = 0;
  private readonly marks: Run[] = [];

  /** `began` is the time of the request, in milliseconds of any clock. */
  constructor(
    private readonly began: number,
    readonly ask: Ask,
  ) {}

  add(event: CompletionEvent, now: number): void {
    if (event.name === "text") this.text += event.text;
    else if (event.name === "done") this.done = event.done;
    else this.addRound(event.round, now);
  }

  /** Returns the runs of the text from an offset on, in order and without gaps. */
  runs(from = 0): Run[] {
    const end = this.text.length;
    const found = this.marks
      .filter((run) => run.to > from && run.from < end)
      .map((run) => ({ ...run, from: Math.max(run.from, from), to: Math.min(run.to, end) }));
    const known = Math.max(from, Math.min(this.told, end));
    if (known < end) found.push({ from: known, to: end, author: "untold", round: -1 });
    return found;
  }

  /** Returns the runs of the text before a round. */
  textBefore(round: number): Run[] {
    return this.marks.filter((run) => run.round < round);
  }

  /** Returns the characters of a run, even if the daemon still holds them back. */
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
