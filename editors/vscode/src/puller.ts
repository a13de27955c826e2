/**
 * Pulls models that the user chose or was offered: the questions, the download with its progress in the status bar, and
 * then the daemon's restart. The `codespec` program does the work.
 */

import { commands, type LogOutputChannel, type Memento, window } from "vscode";
import type { Milestones } from "./milestones.ts";
import { choices, headingOf, type Listing, percentOf, readListing, whyNot } from "./models.ts";
import { type Asked, isOffer, mayAsk, type Offer, question } from "./offer.ts";
import { Cancelled, run } from "./run.ts";
import type { Server } from "./server.ts";
import { chooseModel } from "./settings.ts";
import type { Pulling } from "./status.ts";

const ASKED = "codespec.modelAsked";
const LIST_SECONDS = 60;

export class Puller {
  /** The current download. */
  pulling: Pulling | undefined;
  private offered: Offer | undefined;
  private stopping: AbortController | undefined;

  /** `changed` is called when the download progresses or ends. */
  constructor(
    private readonly server: Server,
    private readonly folder: string,
    private readonly log: LogOutputChannel,
    private readonly kept: Memento,
    private readonly milestones: Milestones,
    private readonly changed: () => void,
  ) {}

  /** Handles the server's offer of a better model: asks the user, unless an earlier answer still holds. */
  async offer(offer: unknown): Promise<void> {
    if (!isOffer(offer)) return this.log.warn("the server's offer can't be read");
    this.offered = offer;
    if (!mayAsk(this.kept.get<Asked>(ASKED), Date.now())) return;
    await this.kept.update(ASKED, { at: Date.now(), never: false }); // so that other windows do not ask too
    const chosen = await window.showInformationMessage(question(offer), "Pull", "Choose Another", "Not now", "Never");
    if (chosen === "Never") await this.kept.update(ASKED, { at: Date.now(), never: true });
    if (chosen === "Pull") await this.pull(offer.model);
    if (chosen === "Choose Another") await this.choose();
  }

  /** Pulls the offered model. */
  async pullOffered(): Promise<void> {
    if (this.offered) await this.pull(this.offered.model);
    else void window.showInformationMessage("codespec: no model is offered: “codespec: Choose a Model” lists all.");
  }

  /** Lists the models that fit this machine, and pulls the one that the user chooses. */
  async choose(): Promise<void> {
    const listing = await this.list();
    if (!listing) return;
    const title = "codespec: choose a model";
    const how = { title, placeHolder: headingOf(listing), matchOnDetail: true };
    const chosen = await window.showQuickPick(choices(listing), how);
    if (chosen) await this.pull(chosen.model);
  }

  /** Pulls a model and makes the daemon use it. One download at a time. */
  async pull(model: string): Promise<void> {
    if (this.pulling) {
      const { model: first } = this.pulling;
      void window.showInformationMessage(`codespec: ${first} is still being fetched: wait for it, or stop it.`);
      return;
    }
    const path = this.program();
    if (!path) return;
    this.stopping = new AbortController();
    this.tell({ model, percent: 0 });
    const why = await this.fetch(path, model, this.stopping.signal).finally(() => this.tell(undefined));
    if (why === undefined) return void window.showInformationMessage(`codespec: ${model} was not fetched completely.`);
    if (why) return this.complain(model, why);
    this.offered = undefined;
    await chooseModel(model);
    this.milestones.reach("model");
    await this.restartDaemon(`${model} is here, and the daemon loads it.`);
  }

  /** Stops the download; the next pull resumes it. */
  stop(): void {
    this.stopping?.abort();
  }

  /** Makes the daemon load its models again, and reports the result. */
  async restartDaemon(done = "the daemon starts again."): Promise<void> {
    const fault = await this.server.restartDaemon();
    if (fault) void window.showWarningMessage(`codespec: ${fault}`);
    else void window.showInformationMessage(`codespec: ${done}`);
  }

  /** Returns the error, "" for success, or undefined if the download was stopped. */
  private async fetch(path: string, model: string, signal: AbortSignal): Promise<string | undefined> {
    const onLine = (line: string): void => {
      const percent = percentOf(line);
      if (percent === undefined) this.log.info(line);
      else this.tell({ model, percent });
    };
    try {
      const words = ["models", "pull", model, "--progress"];
      const { code, lines } = await run(path, words, { cwd: this.folder, signal, onLine });
      return code === 0 ? "" : whyNot(lines);
    } catch (error) {
      if (error instanceof Cancelled) return undefined;
      throw error;
    }
  }

  private async list(): Promise<Listing | undefined> {
    const path = this.program();
    if (!path) return undefined;
    const { code, lines } = await run(path, ["models", "list", "--json"], { cwd: this.folder, seconds: LIST_SECONDS });
    try {
      return readListing(code === 0 ? (lines.find((line) => line.startsWith("{")) ?? "") : "");
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      this.log.error(lines.join("\n"));
      void window.showErrorMessage(`codespec: the models can't be listed (${whyNot(lines)}): see the log.`);
      return undefined;
    }
  }

  private program(): string | undefined {
    const found = this.server.find();
    if (found.kind === "found") return found.path;
    void window.showWarningMessage("codespec: the server is not here: run “codespec: Install the Server” first.");
    return undefined;
  }

  private tell(pulling: Pulling | undefined): void {
    const beginsOrEnds = !pulling !== !this.pulling;
    this.pulling = pulling;
    if (beginsOrEnds) void commands.executeCommand("setContext", "codespec.pulling", pulling !== undefined);
    this.changed();
  }

  private async complain(model: string, why: string): Promise<void> {
    this.log.error(`${model}: ${why}`);
    const chosen = await window.showErrorMessage(`codespec: ${model} was not fetched (${why}).`, "Try Again", "Show Log");
    if (chosen === "Try Again") await this.pull(model);
    if (chosen === "Show Log") this.log.show();
  }
}
