/** The status bar's item, kept up to date. Knows VS Code; status.ts has the words. */

import { type Disposable, MarkdownString, StatusBarAlignment, ThemeColor, window } from "vscode";
import type { Server } from "./server.ts";
import { settings } from "./settings.ts";
import {
  barText,
  facts,
  type Figures,
  headline,
  type Known,
  type Mood,
  moodOf,
  type Pulling,
  type Told,
} from "./status.ts";

const PAUSE_MS = 500; // figures are asked for when answers have come and gone, not with each
const COLOURS: Partial<Record<Mood, string>> = { Error: "errorBackground", Warning: "warningBackground" };

export class StatusBar implements Disposable {
  private readonly item = window.createStatusBarItem("codespec.status", StatusBarAlignment.Right, 100);
  private told: Told = { kind: "Normal", message: "", busy: false };
  private figures: Figures = {};
  private timer: NodeJS.Timeout | undefined;

  /** A model on its way, and its end. */
  pulling: Pulling | undefined;

  constructor(private readonly server: Server) {
    this.item.name = "codespec";
    this.item.command = "codespec.showStatus";
    this.item.show();
    this.draw();
  }

  get known(): Known {
    const { told, figures, pulling } = this;
    return { process: this.server.process, told, figures, pulling, enabled: settings.enabled };
  }

  /** The server says how it is. */
  tell(told: Told): void {
    this.told = told;
    this.draw();
    this.refreshSoon();
  }

  /** The server's process changed: what the last one said is old. */
  changed(): void {
    if (this.server.process.kind !== "running") {
      this.told = { kind: "Normal", message: "", busy: false };
      this.figures = {};
    }
    this.draw();
    this.refreshSoon();
  }

  refreshSoon(): void {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      void this.refresh();
    }, PAUSE_MS);
  }

  /** Asks for the figures; a server that is not there, or goes, has none. */
  async refresh(): Promise<void> {
    if (this.server.process.kind === "running") this.figures = await this.server.figures().catch(() => ({}));
    this.draw();
  }

  draw(): void {
    const { known, item } = this;
    const colour = COLOURS[moodOf(known)];
    item.text = barText(known);
    item.tooltip = tooltip(known);
    item.accessibilityInformation = { label: `codespec, ${headline(known)}`, role: "button" };
    item.backgroundColor = colour ? new ThemeColor(`statusBarItem.${colour}`) : undefined;
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.item.dispose();
  }
}

function tooltip(known: Known): MarkdownString {
  const text = new MarkdownString().appendText(headline(known));
  for (const [name, value] of facts(known)) text.appendMarkdown("\n\n").appendText(`${name}: ${value}`);
  return text;
}
