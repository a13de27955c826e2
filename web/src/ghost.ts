/**
 * The ghost text after the cursor, which stays while the user types along.
 *
 * There is at most one. It stays while the edits since the request match the beginning of its text.
 */

import { type EditorState, StateEffect, StateField, type Transaction } from "@codemirror/state";
import { Decoration, type DecorationSet, EditorView, WidgetType } from "@codemirror/view";
import { restAlong } from "./along.ts";
import { inkAndBlank, type Run } from "./trace.ts";

/** A shown completion, requested at `anchor`; `rest` is the rest of its text after the cursor at `head`. */
export interface Ghost {
  readonly anchor: number;
  readonly head: number;
  readonly text: string;
  readonly runs: readonly Run[];
  readonly ended: boolean;
  readonly rest: string;
}

export type Offer = Omit<Ghost, "head" | "rest">;

/** Shows a completion (or the same one with more text), or nothing. */
export const offer = StateEffect.define<Offer | null>();

export const ghostField = StateField.define<Ghost | null>({
  create: () => null,
  update(ghost, transaction) {
    for (const effect of transaction.effects) {
      if (effect.is(offer)) return effect.value && along(effect.value, transaction.state);
    }
    if (!ghost || !(transaction.docChanged || transaction.selection)) return ghost;
    return untouched(ghost, transaction) ? along(ghost, transaction.state) : null;
  },
  provide: (field) => EditorView.decorations.from(field, decorate),
});

/** Returns the text that is left to accept. */
export function ghostRest(state: EditorState): string {
  return state.field(ghostField)?.rest ?? "";
}

/** Returns the runs of the rest, with offsets from its beginning. */
export function restRuns(ghost: Ghost): Run[] {
  const begin = ghost.text.length - ghost.rest.length;
  return ghost.runs
    .filter((run) => run.to > begin)
    .map((run) => ({ ...run, from: Math.max(0, run.from - begin), to: run.to - begin }));
}

/** Returns whether only the text between the anchor and the cursor was edited. */
function untouched(ghost: Ghost, transaction: Transaction): boolean {
  let inside = true;
  transaction.changes.iterChangedRanges((from, to) => {
    inside &&= from >= ghost.anchor && to <= ghost.head;
  });
  return inside;
}

function along({ anchor, text, runs, ended }: Offer, state: EditorState): Ghost | null {
  const { head, empty } = state.selection.main;
  if (!empty || head < anchor || anchor > state.doc.length) return null;
  const rest = restAlong(text, ended, state.sliceDoc(anchor, head));
  return rest === null ? null : { anchor, head, text, runs, ended, rest };
}

/**
 * Shows the first line after the cursor and the other lines in a block below, which does not split the current line.
 */
function decorate(ghost: Ghost | null): DecorationSet {
  if (!ghost?.rest) return Decoration.none;
  const cut = ghost.rest.indexOf("\n");
  const runs = restRuns(ghost);
  const first = pieces(ghost.rest, runs, 0, cut < 0 ? ghost.rest.length : cut);
  const others = cut < 0 ? [] : pieces(ghost.rest, runs, cut + 1, ghost.rest.length);
  const found = [Decoration.widget({ widget: new GhostWidget(first, false), side: 1 }).range(ghost.head)];
  if (others.length) {
    found.push(Decoration.widget({ widget: new GhostWidget(others, true), side: 2, block: true }).range(ghost.head));
  }
  return Decoration.set(found);
}

interface Piece {
  readonly text: string;
  readonly author: string;
  readonly round: number;
}

function pieces(text: string, runs: readonly Run[], from: number, to: number): Piece[] {
  return runs
    .filter((run) => run.to > from && run.from < to)
    .map(({ author, round, ...run }) => ({
      text: text.slice(Math.max(run.from, from), Math.min(run.to, to)),
      author,
      round,
    }));
}

/** White space gets no colour, because an underline there is only noise. */
function spansOf({ text, author, round }: Piece): Node[] {
  return inkAndBlank(text).map((part) => {
    if (!part.trim()) return document.createTextNode(part);
    const span = document.createElement("span");
    span.className = `cm-by cm-by-${author}`;
    span.dataset["round"] = String(round);
    span.textContent = part;
    return span;
  });
}

class GhostWidget extends WidgetType {
  constructor(
    private readonly pieces: readonly Piece[],
    private readonly block: boolean,
  ) {
    super();
  }

  override eq(other: GhostWidget): boolean {
    return JSON.stringify(this.pieces) === JSON.stringify(other.pieces);
  }

  override toDOM(): HTMLElement {
    const element = document.createElement(this.block ? "div" : "span");
    element.className = "cm-ghost";
    element.setAttribute("aria-hidden", "true"); // the live region reads it once, when it is complete
    for (const piece of this.pieces) element.append(...spansOf(piece));
    return element;
  }

  override ignoreEvent(): boolean {
    return false;
  }
}
