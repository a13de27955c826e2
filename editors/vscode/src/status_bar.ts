/** Keeps the status bar's item up to date; status.ts has the words. */

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

const PAUSE_MS = 500; // without answers, before the figures are requested
const COLOURS: Partial<Record<Mood, string>> = { Error: "errorBackground", Warning: "warningBackground" };

export class StatusBar implements Disposable {
  private readonly item = window.createStatusBarItem("codespec.status", StatusBarAlignment.Right, 100);
  private told: Told = { kind: "Normal", message: "", busy: false };
  private figures: Figures = {};
  private timer: NodeJS.Timeout | undefined;

  /** Handles the progress of a download, and its end. */
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

  /** Handles the server's status. */
  tell(told: Told): void {
    this.told = told;
    this.draw();
    this.refreshSoon();
  }

  /** Handles a change of the server's process, which makes the last status outdated. */
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

  /** Requests the figures; a server that has stopped has none. */
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
