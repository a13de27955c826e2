/**
 * A better model, offered and pulled: the question, the task in a terminal, and the daemon's restart behind that. Knows
 * VS Code; offer.ts knows when to ask.
 */

import {
  type Disposable,
  type LogOutputChannel,
  type Memento,
  ProcessExecution,
  Task,
  TaskScope,
  tasks,
  window,
} from "vscode";
import { type Asked, isOffer, mayAsk, type Offer, question } from "./offer.ts";
import type { Server } from "./server.ts";
import { Single } from "./single.ts";

const ASKED = "codespec.modelAsked";
const NAME = "codespec: pull the model";

export class Puller implements Disposable {
  private offered: Offer | undefined;
  private readonly running = new Single();
  private readonly listening = tasks.onDidEndTaskProcess(({ execution, exitCode }) => {
    if (execution.task.name === NAME) void this.ended(exitCode);
  });

  constructor(
    private readonly server: Server,
    private readonly folder: string,
    private readonly log: LogOutputChannel,
    private readonly kept: Memento,
  ) {}

  /** The server says that there is one. The user is asked, unless an earlier answer holds. */
  async offer(offer: unknown): Promise<void> {
    if (!isOffer(offer)) return this.log.warn("the server's offer can't be read");
    this.offered = offer;
    if (!mayAsk(this.kept.get<Asked>(ASKED), Date.now())) return;
    await this.kept.update(ASKED, { at: Date.now(), never: false }); // other windows do not ask as well
    const chosen = await window.showInformationMessage(question(offer), "Pull", "Not now", "Never");
    if (chosen === "Never") await this.kept.update(ASKED, { at: Date.now(), never: true });
    if (chosen === "Pull") await this.pull();
  }

  /** Fetches what was offered, in a terminal where its progress is seen. One at a time. */
  async pull(): Promise<void> {
    if (!this.offered) {
      void window.showInformationMessage("No model is offered: `codespec models list` in a terminal names all.");
      return;
    }
    const { model, command } = this.offered;
    const [program = "", ...words] = command;
    const how = new ProcessExecution(program, words, { cwd: this.folder });
    const task = new Task({ type: "process" }, TaskScope.Global, NAME, "codespec", how, []);
    try {
      await this.running.begin(() => {
        this.log.info(`pulling ${model}`);
        return tasks.executeTask(task);
      });
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      void window.showErrorMessage(`codespec: ${model} was not pulled, because no terminal opened (${why}): try again.`);
    }
  }

  /** Has the daemon load its models anew, and says what came of it. */
  async restartDaemon(done = "the daemon starts again."): Promise<void> {
    const fault = await this.server.restartDaemon();
    if (fault) void window.showWarningMessage(`codespec: ${fault}`);
    else void window.showInformationMessage(`codespec: ${done}`);
  }

  dispose(): void {
    this.listening.dispose();
  }

  private async ended(code: number | undefined): Promise<void> {
    const model = this.offered?.model ?? "";
    this.running.end();
    if (code !== 0) {
      void window.showErrorMessage(`codespec: ${model} was not pulled: the terminal says why.`);
      return;
    }
    this.offered = undefined;
    await this.restartDaemon(`${model} is here, and the daemon loads it.`);
  }
}
