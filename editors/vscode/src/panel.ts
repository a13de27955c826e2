/**
 * The panel of all alternatives: a read-only text with "Insert" above each. It is a document, not a web page, so
 * nothing that a model wrote can run or load anything.
 */

import {
  CodeLens,
  commands,
  type Disposable,
  EventEmitter,
  type InlineCompletionItem,
  languages,
  Position,
  Range,
  Selection,
  type TextDocument,
  type TextEditor,
  Uri,
  ViewColumn,
  window,
  workspace,
} from "vscode";
import { endOf, type Listed, listed, sectionAt } from "./alternatives.ts";

const SCHEME = "codespec-alternatives";
const PAGE = Uri.from({ scheme: SCHEME, path: "Alternatives" });

/** The current list, with its document and version. */
interface Shown {
  readonly document: TextDocument;
  readonly version: number;
  readonly column: ViewColumn | undefined;
  readonly items: readonly InlineCompletionItem[];
  readonly page: Listed;
}

export class Panel implements Disposable {
  private shown: Shown | undefined;
  private readonly changes = new EventEmitter<Uri>();
  private readonly lenses = new EventEmitter<void>();
  private readonly parts = [
    this.changes,
    this.lenses,
    workspace.registerTextDocumentContentProvider(SCHEME, {
      onDidChange: this.changes.event,
      provideTextDocumentContent: () => this.shown?.page.text ?? "",
    }),
    languages.registerCodeLensProvider(
      { scheme: SCHEME },
      { onDidChangeCodeLenses: this.lenses.event, provideCodeLenses: () => this.buttons() },
    ),
  ];

  /** `ask` fetches the alternatives at a position. */
  constructor(
    private readonly ask: (document: TextDocument, position: Position) => Promise<readonly InlineCompletionItem[]>,
  ) {}

  async show(): Promise<void> {
    const editor = window.activeTextEditor;
    if (!editor || editor.document.uri.scheme === SCHEME) {
      void window.showInformationMessage("No file is open: put the cursor where you want suggestions.");
      return;
    }
    const { document } = editor;
    const { version } = document;
    const position = editor.selection.active;
    const items = unlike(await this.ask(document, position));
    if (items.length === 0) {
      void window.showInformationMessage("codespec: nothing is suggested here; click the status bar for the reason.");
      return;
    }
    const where = `${workspace.asRelativePath(document.uri)}, line ${position.line + 1}`;
    const page = listed(where, items.map(textOf));
    this.shown = { document, version, column: editor.viewColumn, items, page };
    await this.open(document.languageId, page);
  }

  /** Inserts an alternative: the given one, or the one at the panel's cursor. */
  async insert(number?: number): Promise<void> {
    const { shown } = this;
    const at = window.activeTextEditor;
    if (!shown) return;
    const index = number ?? (at?.document.uri.scheme === SCHEME ? sectionAt(shown.page, at.selection.active.line) : -1);
    const item = shown.items[index];
    if (!item?.range) return;
    if (shown.document.isClosed || shown.document.version !== shown.version) {
      void window.showWarningMessage("codespec: the text has changed meanwhile: request the alternatives again.");
      return;
    }
    const editor = await window.showTextDocument(shown.document, shown.column);
    if (!(await putIn(editor, item.range, textOf(item)))) return;
    if (item.command) await commands.executeCommand(item.command.command, ...(item.command.arguments ?? []));
    await this.close();
  }

  dispose(): void {
    for (const part of this.parts) part.dispose();
  }

  private async open(language: string, page: Listed): Promise<void> {
    this.changes.fire(PAGE);
    const document = await languages.setTextDocumentLanguage(await workspace.openTextDocument(PAGE), language);
    const first = new Position(page.sections[0]!.first + 1, 0);
    const editor = await window.showTextDocument(document, ViewColumn.Beside);
    editor.selection = new Selection(first, first);
    this.lenses.fire();
  }

  private buttons(): CodeLens[] {
    const sections = this.shown?.page.sections ?? [];
    return sections.map(
      ({ first }, index) =>
        new CodeLens(new Range(first, 0, first, 0), {
          title: `Insert ${index + 1}`,
          command: "codespec.insertAlternative",
          arguments: [index],
        }),
    );
  }

  private async close(): Promise<void> {
    this.shown = undefined;
    const tabs = window.tabGroups.all.flatMap(({ tabs }) => tabs);
    const ours = tabs.filter(({ input }) => (input as { uri?: Uri } | undefined)?.uri?.scheme === SCHEME);
    await window.tabGroups.close(ours);
  }
}

function putIn(editor: TextEditor, range: Range, text: string): Thenable<boolean> {
  return editor.edit((edit) => edit.replace(range, text)).then((done) => {
    const end = new Position(...endOf(text, range.start.line, range.start.character));
    if (done) editor.selection = new Selection(end, end);
    return done;
  });
}

function textOf({ insertText }: InlineCompletionItem): string {
  return typeof insertText === "string" ? insertText : insertText.value;
}

/** Removes duplicates. */
function unlike(items: readonly InlineCompletionItem[]): InlineCompletionItem[] {
  const texts = items.map(textOf);
  return items.filter((_, index) => texts.indexOf(texts[index]!) === index);
}
