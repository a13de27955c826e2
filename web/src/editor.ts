/**
 * The editor: CodeMirror with the page's colours and keys.
 *
 * It is in a shadow root, where CodeMirror adds its styles as objects, since the security policy forbids inline styles.
 */

import { defaultKeymap, history, historyKeymap, indentLess, indentMore, insertTab } from "@codemirror/commands";
import { bracketMatching, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { EditorState, type Extension } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers, scrollPastEnd } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { type Language, openSample, support } from "./languages.ts";

const LOOK = EditorView.theme({
  "&": { height: "100%", color: "var(--ink)", backgroundColor: "var(--paper)", fontSize: "var(--code-size)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6" },
  ".cm-content": { padding: "14px 0", caretColor: "var(--accent)" },
  ".cm-cursor": { borderLeft: "2px solid var(--accent)" },
  ".cm-gutters": { backgroundColor: "var(--paper)", color: "var(--faint)", border: "none", paddingRight: "6px" },
  ".cm-lineNumbers .cm-gutterElement": { padding: "0 6px 0 14px", minWidth: "34px" },
  ".cm-activeLine": { backgroundColor: "var(--line-lit)" },
  ".cm-activeLineGutter": { backgroundColor: "transparent" },
  ".cm-selectionBackground, &.cm-focused .cm-selectionBackground": { backgroundColor: "var(--selected) !important" },
  "&.cm-focused .cm-matchingBracket": { backgroundColor: "var(--selected)", borderRadius: "2px" },
  ".cm-ghost": { whiteSpace: "pre", fontStyle: "italic" },
  "div.cm-ghost": { paddingLeft: "6px" },
  ".cm-by": { textDecorationThickness: "2px", textUnderlineOffset: "4px", textDecorationSkipInk: "none" },
  ".cm-ghost .cm-by": { color: "var(--by)", textDecorationColor: "color-mix(in srgb, var(--by) 65%, transparent)" },
  ".cm-by-suffix": { "--by": "var(--suffix)", textDecorationLine: "underline", textDecorationStyle: "dotted" },
  ".cm-by-drafter": { "--by": "var(--drafter)", textDecorationLine: "underline", textDecorationStyle: "solid" },
  ".cm-by-target": { "--by": "var(--target)", textDecorationLine: "underline", textDecorationStyle: "double" },
  ".cm-by-client": { "--by": "var(--number)", textDecorationLine: "underline", textDecorationStyle: "dashed" },
  ".cm-by-head": { "--by": "var(--good)", textDecorationLine: "underline", textDecorationStyle: "wavy" },
  ".cm-by-untold": { "--by": "var(--faint)" },
  ".cm-written": {
    backgroundColor: "color-mix(in srgb, var(--by) 16%, transparent)",
    textDecorationColor: "var(--by)",
    borderRadius: "2px",
  },
  ".cm-by.lit": { backgroundColor: "color-mix(in srgb, var(--by) 30%, transparent)", borderRadius: "2px" },
});

const COLOURS = HighlightStyle.define([
  { tag: [tags.keyword, tags.modifier, tags.operatorKeyword], color: "var(--keyword)" },
  { tag: [tags.string, tags.character, tags.regexp, tags.special(tags.string)], color: "var(--string)" },
  { tag: [tags.number, tags.bool, tags.null, tags.atom], color: "var(--number)" },
  { tag: [tags.comment, tags.docString], color: "var(--comment)", fontStyle: "italic" },
  { tag: [tags.typeName, tags.className, tags.namespace], color: "var(--type)" },
  { tag: [tags.function(tags.variableName), tags.function(tags.propertyName)], color: "var(--function)" },
  { tag: tags.definition(tags.variableName), color: "var(--function)" },
  { tag: [tags.meta, tags.processingInstruction, tags.annotation], color: "var(--meta)" },
]);

/** Tab indents if there is nothing to accept. */
const TAB = {
  key: "Tab",
  shift: indentLess,
  run: (view: EditorView): boolean => {
    if (!view.state.selection.main.empty) return indentMore(view);
    const unit = view.state.facet(indentUnit);
    if (unit === "\t") return insertTab(view);
    view.dispatch(view.state.replaceSelection(unit), { scrollIntoView: true, userEvent: "input.indent" });
    return true;
  },
};

export function openState(language: Language, more: Extension): EditorState {
  const { text, cursor } = openSample(language);
  return EditorState.create({
    doc: text,
    selection: { anchor: cursor },
    extensions: [
      more,
      lineNumbers(),
      history(),
      drawSelection(),
      scrollPastEnd(), // at the end of the text, CodeMirror scrolls with it, and growing ghost text would move the line
      highlightActiveLine(),
      bracketMatching(),
      indentOnInput(),
      indentUnit.of(language.indent),
      EditorState.tabSize.of(4),
      keymap.of([TAB, ...defaultKeymap, ...historyKeymap]),
      support(language),
      syntaxHighlighting(COLOURS),
      LOOK,
      EditorView.contentAttributes.of({ "aria-label": "Code", spellcheck: "false" }),
    ],
  });
}

export function openEditor(parent: HTMLElement, state: EditorState): EditorView {
  const root = parent.attachShadow({ mode: "open" });
  return new EditorView({ state, parent: root as unknown as Element, root });
}

/** Shows a document and scrolls its cursor to the middle. */
export function showState(view: EditorView, state: EditorState): void {
  view.setState(state);
  view.dispatch({ effects: EditorView.scrollIntoView(state.selection.main.head, { y: "center" }) });
}

/** Highlights the text of one round, or nothing. */
export function lightRound(view: EditorView, round: number | null): void {
  for (const mark of view.dom.querySelectorAll<HTMLElement>(".cm-ghost .cm-by")) {
    mark.classList.toggle("lit", round !== null && mark.dataset["round"] === String(round));
  }
}
