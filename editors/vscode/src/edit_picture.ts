/** Pictures of next edits: the arrow in the gutter, and added lines, since decorations can't add lines to an editor. */

import { ColorThemeKind, type DecorationOptions, type Position, Range, type TextEditor, Uri, window, workspace } from "vscode";
import type { Hunk } from "./hunk.ts";

const DARK = { text: "#d4d4d4", ground: "#1f3a26" };
const LIGHT = { text: "#1f1f1f", ground: "#e2f3e2" };
const WIDTH = 0.62; // of a letter, in font sizes; fonts for code have 0.5 to 0.62

/** The arrow in the gutter. */
export const ARROW = asUri(
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16" fill="none" stroke="#8b7fe8" stroke-width="1.6" ' +
    'stroke-linecap="round" stroke-linejoin="round"><path d="M2 8h8M7 5l3 3-3 3M13 4v8"/></svg>',
);

/** Shows the lines that a hunk adds, beside its first line or the line above an insertion. */
export function linesAdded(editor: TextEditor, { row, old, new: added }: Hunk): DecorationOptions {
  const line = old.length || row === 0 ? row : row - 1;
  const { size, height, family } = fontOf(editor);
  const isDark = [ColorThemeKind.Dark, ColorThemeKind.HighContrast].includes(window.activeColorTheme.kind);
  const { text: fill, ground } = isDark ? DARK : LIGHT;
  const tab = " ".repeat(Number(editor.options.tabSize) || 4);
  const texts = added.map((text) => text.replaceAll("\t", tab));
  const columns = Math.max(...texts.map((text) => text.length)) + 1;
  const rows = texts.map((text, n) => `<text x="4" y="${(n + 0.75) * height}" xml:space="preserve">${escaped(text)}</text>`);
  const [width, whole] = [Math.ceil(columns * size * WIDTH) + 8, texts.length * height];
  const svg =
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${whole}" font-family="${escaped(family)}" ` +
    `font-size="${size}" fill="${fill}">` +
    `<rect width="100%" height="100%" fill="${ground}"/>${rows.join("")}</svg>`;
  const covered = Array.from({ length: texts.length }, (_, n) => endOf(editor, line + n));
  const end = endOf(editor, line);
  const beside = Math.max(...covered.map(({ character }) => character)) - end.character + 3;
  return {
    range: new Range(end, end),
    renderOptions: {
      after: {
        contentIconPath: asUri(svg),
        margin: `0 0 0 ${beside}ch`,
        textDecoration: "none; position: absolute; z-index: 1;", // beside the lines below, which don't move
      },
    },
  };
}

function endOf({ document }: TextEditor, line: number): Position {
  return document.lineAt(Math.min(line, document.lineCount - 1)).range.end;
}

function asUri(svg: string): Uri {
  return Uri.parse(`data:image/svg+xml;base64,${Buffer.from(svg).toString("base64")}`);
}

function fontOf({ document }: TextEditor): { size: number; height: number; family: string } {
  const editor = workspace.getConfiguration("editor", document);
  const size = editor.get("fontSize", 14);
  const wanted = editor.get("lineHeight", 0);
  const height = wanted >= 8 ? wanted : Math.round(size * (wanted || 1.35)); // as VS Code does
  return { size, height, family: `${editor.get("fontFamily", "")}, monospace`.replace(/^, /, "") };
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
