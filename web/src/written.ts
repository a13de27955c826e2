/** Accepted text keeps the colours of its sources for a while. */

import { type ChangeDesc, type EditorState, type Range, StateEffect, StateField } from "@codemirror/state";
import { Decoration, type DecorationSet, EditorView } from "@codemirror/view";
import { inkAndBlank, type Run } from "./trace.ts";

export const KEPT_MS = 40_000;

/** Runs that were inserted into the document at `at`; `when` identifies the acceptance. */
export const written = StateEffect.define<{ at: number; runs: readonly Run[]; when: number }>({
  map: (value, changes: ChangeDesc) => ({ ...value, at: changes.mapPos(value.at) }),
});

/** Removes the colours of one acceptance. */
export const forget = StateEffect.define<number>();

export const writtenField = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(marks, transaction) {
    marks = marks.map(transaction.changes);
    for (const effect of transaction.effects) {
      if (effect.is(forget)) marks = marks.update({ filter: (_from, _to, mark) => mark.spec.when !== effect.value });
      if (!effect.is(written)) continue;
      const { at, runs, when } = effect.value;
      const add = runs.flatMap((run) => marksOf(run, at, when, transaction.state));
      marks = marks.update({ add, sort: true });
    }
    return marks;
  },
  provide: (field) => EditorView.decorations.from(field),
});

/** Returns the marks of one run, on its visible characters. */
function marksOf({ from, to, author }: Run, at: number, when: number, state: EditorState): Range<Decoration>[] {
  const mark = Decoration.mark({ class: `cm-by cm-by-${author} cm-written`, when });
  let place = at + from;
  return inkAndBlank(state.sliceDoc(place, at + to)).flatMap((part) => {
    place += part.length;
    return part.trim() ? [mark.range(place - part.length, place)] : [];
  });
}
