/** The installation as the user sees it: offer, progress and result. install.ts does the work. */

import { existsSync, mkdirSync, readdirSync } from "node:fs";
import { commands, type LogOutputChannel, type Memento, ProgressLocation, window } from "vscode";
import { install, InstallError } from "./install.ts";
import { machine } from "./machine.ts";
import { candidates, choosePython, PythonError, QUESTION } from "./python.ts";
import { Cancelled, run } from "./run.ts";
import type { Server } from "./server.ts";
import { settings } from "./settings.ts";
import { findSource, named, SourceError } from "./source.ts";

const NEVER = "codespec.neverOffer";
const ASK_SECONDS = 20; // for a Python to print its version

export class Installer {
  private running: Promise<void> | undefined;

  constructor(
    private readonly server: Server,
    private readonly environment: string,
    private readonly folder: string,
    /** The folder with the server inside the extension. */
    private readonly carried: string,
    private readonly log: LogOutputChannel,
    private readonly kept: Memento,
  ) {}

  /** Asks once per window, unless the user has answered "never". */
  async offer(): Promise<void> {
    if (this.kept.get(NEVER, false)) return;
    const text =
      "codespec needs its server, which is not here yet: install it into a Python environment of its own? " +
      "It takes about 200 MB.";
    const chosen = await window.showInformationMessage(text, "Install", "Set the Path", "Never");
    if (chosen === "Install") await this.install();
    if (chosen === "Set the Path") await commands.executeCommand("workbench.action.openSettings", "codespec.command");
    if (chosen === "Never") await this.kept.update(NEVER, true);
  }

  /** Installs with a progress bar and starts the installed server. One installation at a time. */
  install(): Promise<void> {
    this.running ??= this.withProgress().finally(() => (this.running = undefined));
    return this.running;
  }

  private async withProgress(): Promise<void> {
    const options = { location: ProgressLocation.Notification, title: "codespec", cancellable: true };
    const fault = await window.withProgress(options, async (progress, token) => {
      const stop = new AbortController();
      token.onCancellationRequested(() => stop.abort());
      const step = (text: string): void => {
        progress.report({ message: text });
        this.server.show({ kind: "installing", step: text });
      };
      return this.attempt(step, stop.signal);
    });
    await this.server.restart();
    if (fault)
      void this.complain(fault); // the message stays until the user closes it
    else if (this.server.process.kind === "running")
      void window.showInformationMessage("codespec is installed and ready.");
  }

  /** Returns the error, or "". */
  private async attempt(step: (text: string) => void, signal: AbortSignal): Promise<string> {
    try {
      const names = existsSync(this.carried) ? readdirSync(this.carried) : [];
      const carried = { folder: this.carried, names };
      const source = findSource(settings.installFrom, machine.home, machine.windows, carried);
      step("looking for Python");
      await this.server.stop();
      const python = await this.findPython(signal);
      this.log.info(`installing ${named(source)} with ${python}`);
      const log = (line: string): void => this.log.info(line);
      await install({ python, environment: this.environment, source, signal, log, step });
      return "";
    } catch (error) {
      if (error instanceof Cancelled) return "";
      if (error instanceof PythonError || error instanceof InstallError || error instanceof SourceError)
        return error.message;
      throw error;
    }
  }

  private async findPython(signal: AbortSignal): Promise<string> {
    mkdirSync(this.folder, { recursive: true });
    return choosePython(candidates(settings.python, machine), async (path) => {
      const { code, lines } = await run(path, ["-c", QUESTION], { cwd: this.folder, signal, seconds: ASK_SECONDS });
      return { code, text: lines.join("\n") };
    });
  }

  private async complain(sentence: string): Promise<void> {
    this.log.error(sentence);
    const chosen = await window.showErrorMessage(`codespec: ${sentence}`, "Show Log", "Try Again");
    if (chosen === "Show Log") this.log.show();
    if (chosen === "Try Again") void this.install();
  }
}
