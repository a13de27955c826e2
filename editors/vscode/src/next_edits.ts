/**
 * Next edits: when to request one, which hunk of it to show, and how to jump to it, accept it and dismiss it. Pure.
 */

import { changesOf, type Hunk, holds, insertedAt, readHunk, type TextChange } from "./hunk.ts";

export type Mode = "hint" | "eager" | "off";
export type Trigger = "typing" | "moved" | "accepted" | "invoked";

/** An answer to codespec/nextEdit. */
export interface Answer {
  readonly edits: readonly {
    readonly id: string;
    readonly textDocument: { readonly uri: string; readonly version: number | null };
    readonly hunks: readonly TextChange[];
  }[];
  readonly reason?: string;
}

/** The only cursor of the active editor, and the text `before` it in its line. */
export interface Here {
  readonly uri: string;
  readonly version: number;
  readonly line: number;
  readonly character: number;
  readonly before: string;
  lines(): readonly string[];
}

/** What to draw. `text` is the part of the hunk that ghost text at the cursor shows, in place of all else. */
export interface View {
  readonly hunk: Hunk;
  readonly whole: boolean;
  readonly line: number;
  readonly text: string | null;
}

/** The editor and the server, as far as they are needed here. */
export interface Host {
  mode(): Mode;
  /** Returns null without one empty selection in a file. */
  here(): Here | null;
  draw(view: View | null): void;
  jump(line: number, character: number): void;
  /** Replaces a hunk's lines as one undo step; returns whether that was possible. */
  apply(hunk: Hunk): Promise<boolean>;
  /** Returns the answer for the text and cursor as they are now. */
  ask(trigger: Trigger): Promise<Answer>;
  /** Runs a command of the server. */
  run(command: string, ...given: unknown[]): void;
  shown(id: string): void;
  tell(sentence: string): void;
}

/** Milliseconds: from a change to its request, from a movement to its request, and how long after a change one counts. */
export const WAITS = { pause: 400, rest: 150, recent: 10_000 };

interface Pending {
  readonly id: string;
  readonly uri: string;
  readonly version: number;
  readonly index: number; // of the first hunk that is left
  readonly hunks: readonly Hunk[];
  whole: boolean;
  jumped: string;
  shown: boolean;
}

export class NextEdits {
  private pending: Pending | null = null;
  private number = 0; // of the last request; answers to older ones are dropped
  private timer: NodeJS.Timeout | undefined;
  private dismissed = ""; // the text in which the user dismissed an edit
  private changedAt = Number.NEGATIVE_INFINITY;
  private line = -1;
  private applying = false;

  constructor(
    private readonly host: Host,
    private readonly waits = WAITS,
  ) {}

  /** Handles a change of the active text: hides the edit and requests another one soon. */
  changed(): void {
    if (this.applying) return;
    this.forget();
    this.changedAt = Date.now();
    this.line = this.host.here()?.line ?? -1;
    this.askLater("typing", this.waits.pause);
  }

  /** Handles a movement of the cursor, also to another editor. */
  moved(): void {
    const here = this.host.here();
    if (this.applying || !here) return this.draw();
    if (this.pending && !isOf(this.pending, here)) this.forget();
    const isOther = here.line !== this.line;
    this.line = here.line;
    this.draw();
    if (this.pending || this.timer || !isOther || Date.now() - this.changedAt > this.waits.recent) return;
    this.askLater("moved", this.waits.rest);
  }

  /** Jumps to the edit, or accepts its hunk at the cursor. */
  async take(): Promise<void> {
    const view = this.view();
    if (!view) return;
    if (holds(view.hunk, view.line)) await this.accept();
    else this.jump(view.hunk);
  }

  /** Hides the edit until the text changes. */
  dismiss(): void {
    const { pending } = this;
    if (!pending || !this.view()) return;
    this.host.run("codespec.dismissEdit", pending.id);
    this.dismissed = textOf(pending);
    this.forget();
  }

  /** Hides the edit if it is ghost text, which the user dismissed. */
  dismissGhost(): void {
    if (this.ghost() !== null) this.dismiss();
  }

  /** Shows the whole edit, or requests one. */
  async reveal(): Promise<void> {
    if (!this.pending || !this.view()) return this.ask("invoked");
    this.pending.whole = true;
    this.draw();
  }

  /** Returns the text that the edit inserts at the cursor and its identity, if it is shown as ghost text. */
  ghost(): { readonly text: string; readonly id: string; readonly index: number } | null {
    const text = this.view()?.text ?? null;
    return this.pending && text !== null ? { text, id: this.pending.id, index: this.pending.index } : null;
  }

  /** Handles ghost text that the user accepted. */
  async inserted(id: string, index: number): Promise<void> {
    this.host.run("codespec.acceptEdit", id, index);
    await this.ask("accepted");
  }

  dispose(): void {
    this.forget();
  }

  /** Returns what to show: nothing where Tab would indent the line, unless it has just jumped there. */
  private view(): View | null {
    const [pending, here] = [this.pending, this.host.here()];
    if (!pending || !here || !isOf(pending, here)) return null;
    const { line, character } = here;
    const hunk = pending.hunks[0]!;
    const text = insertedAt(hunk, line, character);
    const indents = /^\s*$/.test(here.before) && pending.jumped !== `${line}:${character}`;
    if (text === null && indents) return null;
    pending.whole ||= this.host.mode() === "eager" || holds(hunk, line);
    return { hunk, whole: pending.whole, line, text };
  }

  private draw(): void {
    const view = this.view();
    this.host.draw(view);
    if (!view || !this.pending || this.pending.shown) return;
    this.pending.shown = true;
    this.host.shown(this.pending.id);
  }

  private jump(hunk: Hunk): void {
    const { pending } = this;
    if (!pending) return;
    const line = hunk.old.length ? hunk.row : Math.max(0, hunk.row - 1);
    const [old, added] = [hunk.old[0], hunk.new[0]];
    const changes = old !== undefined && added !== undefined ? changesOf(old, added) : null;
    const character = changes?.[0]?.from ?? old?.search(/\S|$/) ?? 0;
    pending.jumped = `${line}:${character}`;
    pending.whole = true;
    this.line = line;
    this.host.jump(line, character);
    this.draw();
  }

  private async accept(): Promise<void> {
    const { pending } = this;
    if (!pending) return;
    const [hunk, ...rest] = pending.hunks as [Hunk, ...Hunk[]];
    this.applying = true;
    this.host.draw(null);
    const done = await this.host.apply(hunk);
    this.applying = false;
    const here = this.host.here();
    this.forget();
    if (!done || !here) return;
    this.host.run("codespec.acceptEdit", pending.id, pending.index);
    const delta = hunk.new.length - hunk.old.length;
    const hunks = rest.map((each) => (each.row > hunk.row ? { ...each, row: each.row + delta } : each));
    const { version, line } = here;
    if (hunks.length)
      this.pending = { ...pending, hunks, version, index: pending.index + 1, whole: false, jumped: "" };
    [this.changedAt, this.line] = [Date.now(), line];
    this.draw();
    await this.ask("accepted");
  }

  private askLater(trigger: Trigger, wait: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.ask(trigger), wait);
  }

  private async ask(trigger: Trigger): Promise<void> {
    this.stop();
    const here = this.host.here();
    const isInvoked = trigger === "invoked";
    if (!here || (!isInvoked && (this.host.mode() === "off" || this.dismissed === textOf(here)))) return;
    const { number } = this;
    const { edits, reason } = await this.host.ask(trigger);
    if (number !== this.number) return;
    const [edit] = edits;
    const hunks = edit?.hunks.map((each) => readHunk(each, here.lines())) ?? [];
    const fits = edit && edit.textDocument.version === here.version && hunks.length && hunks.every((each) => each);
    if (fits) {
      const { id } = edit;
      const { uri, version } = here;
      this.forget();
      this.pending = { id, uri, version, index: 0, hunks: hunks as Hunk[], whole: isInvoked, jumped: "", shown: false };
      this.draw();
    } else if (isInvoked && reason) {
      this.host.tell(reason);
    }
  }

  private stop(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.number++;
  }

  private forget(): void {
    this.stop();
    this.pending = null;
    this.host.draw(null);
  }
}

function textOf({ uri, version }: { readonly uri: string; readonly version: number }): string {
  return `${uri}@${version}`;
}

function isOf(pending: Pending, here: Here): boolean {
  return textOf(pending) === textOf(here);
}
