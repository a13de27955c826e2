/** Next edits in VS Code: draws them by decorations, and follows the active editor. */

import {
  CancellationTokenSource,
  commands,
  type DecorationOptions,
  Disposable,
  InlineCompletionItem,
  type LogOutputChannel,
  type Position,
  Range,
  Selection,
  type TextDocument,
  type TextEditor,
  TextEditorRevealType,
  ThemeColor,
  window,
  workspace,
} from "vscode";
import { ARROW, linesAdded } from "./edit_picture.ts";
import { changedWords, changesOf, type Hunk, holds } from "./hunk.ts";
import { type Answer, type Here, NextEdits, type Host, type Trigger, type View } from "./next_edits.ts";
import type { Server } from "./server.ts";
import { settings } from "./settings.ts";

const SCHEMES = ["file", "untitled"];
const IN_PLACE = "codespec.edit"; // the context in which keys belong to an edit
const INSERTED = "codespec.insertedEdit"; // runs when ghost text of an edit was accepted

const muted = new ThemeColor("editorCodeLens.foreground");
const inserted = new ThemeColor("diffEditor.insertedTextBackground");

export class EditView implements Host {
  readonly edits = new NextEdits(this);
  private readonly arrow = window.createTextEditorDecorationType({ gutterIconPath: ARROW, gutterIconSize: "contain" });
  private readonly hint = window.createTextEditorDecorationType({});
  private readonly added = window.createTextEditorDecorationType({});
  private readonly removed = window.createTextEditorDecorationType({
    textDecoration: "line-through",
    opacity: "0.6",
    backgroundColor: new ThemeColor("diffEditor.removedTextBackground"),
  });
  private drawn: TextEditor | undefined;
  private running: CancellationTokenSource | undefined;
  private readonly parts: Disposable;

  constructor(
    private readonly server: Server,
    private readonly log: LogOutputChannel,
  ) {
    const changed = ({ document, contentChanges }: { document: TextDocument; contentChanges: readonly unknown[] }): void => {
      if (contentChanges.length && document === window.activeTextEditor?.document) this.edits.changed();
    };
    this.parts = Disposable.from(
      this.arrow,
      this.hint,
      this.added,
      this.removed,
      this.edits,
      commands.registerCommand(INSERTED, (id: string, index: number) => this.edits.inserted(id, index)),
      workspace.onDidChangeTextDocument(changed),
      window.onDidChangeTextEditorSelection(({ textEditor }) => textEditor === window.activeTextEditor && this.edits.moved()),
      window.onDidChangeActiveTextEditor(() => this.edits.moved()),
    );
  }

  dispose(): void {
    this.parts.dispose();
  }

  /** Returns the edit as ghost text, if it inserts at this position. */
  ghostAt({ uri, version }: TextDocument, position: Position): InlineCompletionItem[] | null {
    const [ghost, here] = [this.edits.ghost(), this.here()];
    const isHere = here?.uri === uri.toString() && here.version === version && here.line === position.line;
    if (!ghost || !isHere || here.character !== position.character) return null;
    const item = new InlineCompletionItem(ghost.text, new Range(position, position));
    item.command = { title: "codespec", command: INSERTED, arguments: [ghost.id, ghost.index] };
    return [item];
  }

  mode(): "hint" | "eager" | "off" {
    return settings.nextEdit;
  }

  here(): Here | null {
    const editor = window.activeTextEditor;
    const only = editor?.selections.length === 1 ? editor.selections[0] : undefined;
    if (!editor || !only?.isEmpty || !SCHEMES.includes(editor.document.uri.scheme)) return null;
    const { document } = editor;
    const { line, character } = only.active;
    return {
      uri: document.uri.toString(),
      version: document.version,
      line,
      character,
      before: document.lineAt(line).text.slice(0, character),
      lines: () => document.getText().split(/\r\n|\r|\n/),
    };
  }

  draw(view: View | null): void {
    const editor = window.activeTextEditor;
    if (this.drawn && (this.drawn !== editor || !view)) this.clear(this.drawn);
    void commands.executeCommand("setContext", IN_PLACE, view !== null && view.text === null);
    this.drawn = view && editor ? editor : undefined;
    if (!view || !editor) return;
    if (view.text !== null) {
      this.clear(editor);
      void commands.executeCommand("editor.action.inlineSuggest.trigger");
      return;
    }
    const { hunk, line, whole } = view;
    const row = Math.min(hunk.row, editor.document.lineCount - 1);
    const away = { renderOptions: { after: { contentText: `⇥ line ${row + 1}`, color: muted, margin: "0 0 0 2ch" } } };
    editor.setDecorations(this.arrow, [new Range(row, 0, row, 0)]);
    editor.setDecorations(this.hint, holds(hunk, line) ? [] : [{ range: endOf(editor, line), ...away }]);
    const words = whole ? changedWords(hunk) : null;
    const removed = words
      ? words.flatMap((changes, n) => changes.map(({ from, to }) => new Range(hunk.row + n, from, hunk.row + n, to)))
      : whole
        ? hunk.old.map((text, n) => new Range(hunk.row + n, 0, hunk.row + n, text.length))
        : [];
    editor.setDecorations(this.removed, removed.filter((range) => !range.isEmpty));
    const added = words ? wordsAdded(hunk.row, words) : whole && hunk.new.length ? [linesAdded(editor, hunk)] : [];
    editor.setDecorations(this.added, added);
  }

  jump(line: number, character: number): void {
    const editor = window.activeTextEditor;
    if (!editor) return;
    editor.selection = new Selection(line, character, line, character);
    editor.revealRange(editor.selection, TextEditorRevealType.InCenterIfOutsideViewport);
  }

  async apply({ row, old, new: added }: Hunk): Promise<boolean> {
    const editor = window.activeTextEditor;
    if (!editor) return false;
    const { document } = editor;
    const last = row + old.length;
    const start = document.validatePosition(new Range(row, 0, row, 0).start);
    const isEnd = last >= document.lineCount;
    const before = isEnd && row > 0 ? document.lineAt(row - 1).range.end : start;
    const range = isEnd ? new Range(before, document.lineAt(document.lineCount - 1).range.end) : new Range(row, 0, last, 0);
    const text = !isEnd ? added.map((line) => `${line}\n`) : row > 0 ? added.map((line) => `\n${line}`) : [added.join("\n")];
    const done = await editor.edit((builder) => builder.replace(range, text.join("")), { undoStopBefore: true, undoStopAfter: true });
    if (done) this.goTo(editor, { row, old, new: added });
    return done;
  }

  async ask(trigger: Trigger): Promise<Answer> {
    const editor = window.activeTextEditor;
    this.running?.cancel();
    if (!editor) return { edits: [] };
    this.running = new CancellationTokenSource();
    try {
      return await this.server.nextEdit(editor.document, editor.selection.active, trigger, this.running.token);
    } catch (error) {
      this.log.debug(`no next edit: ${String(error)}`); // cancelled, or a server that is older than next edits
      return { edits: [] };
    }
  }

  run(command: string, ...given: unknown[]): void {
    this.server.run(command, given).catch((error) => this.log.debug(`${command} was not reported: ${String(error)}`));
  }

  shown(id: string): void {
    this.server.showed(id);
  }

  tell(sentence: string): void {
    void window.showInformationMessage(`codespec: ${sentence}`);
  }

  private clear(editor: TextEditor): void {
    for (const each of [this.arrow, this.hint, this.added, this.removed]) editor.setDecorations(each, []);
  }

  /** Puts the cursor at the end of a hunk's last change. */
  private goTo(editor: TextEditor, { row, old, new: added }: Hunk): void {
    const line = Math.max(0, row + added.length - 1);
    const changes = old.length === added.length && added.length ? changesOf(added.at(-1)!, old.at(-1)!) : null;
    const character = changes?.at(-1)?.to ?? added.at(-1)?.length ?? 0;
    const at = editor.document.validatePosition(new Selection(line, character, line, character).active);
    editor.selection = new Selection(at, at);
  }
}

function endOf(editor: TextEditor, line: number): Range {
  const { end } = editor.document.lineAt(line).range;
  return new Range(end, end);
}

function wordsAdded(row: number, words: NonNullable<ReturnType<typeof changedWords>>): DecorationOptions[] {
  return words.flatMap((changes, n) =>
    changes
      .filter(({ text }) => text)
      .map(({ to, text }) => ({
        range: new Range(row + n, to, row + n, to),
        renderOptions: { after: { contentText: text.replaceAll(" ", "\u00a0"), backgroundColor: inserted } },
      })),
  );
}
