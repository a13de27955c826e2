/** Inline completion in VS Code: passes requests through, and makes VS Code send one again. */

import {
  CancellationTokenSource,
  commands,
  type InlineCompletionItem,
  type InlineCompletionList,
  InlineCompletionTriggerKind,
  type Position,
  type TextDocument,
  window,
} from "vscode";
import type { Middleware } from "vscode-languageclient/node";
import { type Editor, MoreGate, type Place } from "./more.ts";

const AUTOMATIC = InlineCompletionTriggerKind.Automatic;
const NEVER_CANCELLED = new CancellationTokenSource().token;

type Items = InlineCompletionItem[] | InlineCompletionList;
export type Gate = MoreGate<Items>;
export type GhostAt = (document: TextDocument, position: Position) => InlineCompletionItem[] | null;

/**
 * Returns the language client's middleware. It calls `answered` after each request with whether there is text to show,
 * and `focus` when the server has to learn again which document is in use. A next edit that `ghostAt` returns is shown
 * in place of a completion.
 */
export function middleware(
  gate: Gate,
  answered: (some: boolean) => void,
  focus: () => void,
  ghostAt: GhostAt,
): Middleware {
  return {
    // A document that is opened without being shown must not change the status bar.
    didOpen: async (document, next) => {
      await next(document);
      focus();
    },
    workspace: {
      didChangeConfiguration: async (sections, next) => {
        await next(sections);
        focus(); // the change may have switched completion on or off here
      },
    },
    provideInlineCompletionItems: async (document, position, context, token, next) => {
      const edit = ghostAt(document, position);
      if (edit) return edit;
      const place = placeOf(document, position, context.selectedCompletionInfo?.text);
      const unasked = { ...context, triggerKind: AUTOMATIC };
      const ask = async (): Promise<Items | null> => (await next(document, position, context, token)) ?? null;
      const again = async (): Promise<Items | null> =>
        (await next(document, position, unasked, NEVER_CANCELLED)) ?? null;
      let items: Items | null = null;
      try {
        items = await gate.answer(place, ask, again);
        return items;
      } finally {
        answered(items !== null && activeEditor.hasSome(items));
      }
    },
  };
}

/** The active editor, as `MoreGate` sees it. */
export const activeEditor: Editor<Items> = {
  isHere(place) {
    const editor = window.activeTextEditor;
    const only = editor?.selections.length === 1 ? editor.selections[0] : undefined;
    if (!editor || !only?.isEmpty) return false;
    const { uri, version, line, character } = placeOf(editor.document, only.active);
    return uri === place.uri && version === place.version && line === place.line && character === place.character;
  },
  hasSome(items) {
    return (Array.isArray(items) ? items : items.items).length > 0;
  },
  /** Runs both as one command, so that nothing is drawn in between. */
  refresh() {
    const both = ["editor.action.inlineSuggest.hide", "editor.action.inlineSuggest.trigger"];
    void commands.executeCommand("runCommands", { commands: both });
  },
};

function placeOf({ uri, version }: TextDocument, { line, character }: Position, selected = ""): Place {
  return { uri: uri.toString(), version, line, character, selected };
}
