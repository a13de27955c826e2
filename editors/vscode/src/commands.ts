/** The commands, and the explanation that a click on the status bar opens. */

import {
  commands,
  type Disposable,
  EventEmitter,
  env,
  type LogOutputChannel,
  QuickPickItemKind,
  Uri,
  window,
  workspace,
} from "vscode";
import { explanation } from "./explanation.ts";
import type { Installer } from "./installer.ts";
import type { Milestones } from "./milestones.ts";
import type { NextEdits } from "./next_edits.ts";
import type { Panel } from "./panel.ts";
import type { Puller } from "./puller.ts";
import type { Server } from "./server.ts";
import { settings, toggle, toggleLanguage } from "./settings.ts";
import { openSample, setUp, type Steps } from "./set_up.ts";
import { facts, headline, type Known } from "./status.ts";
import type { StatusBar } from "./status_bar.ts";
import type { Tokens } from "./tokens.ts";

const PAGE = Uri.parse("codespec:The last completion");

/** VS Code's own commands for suggestions, under names that are listed beside ours. */
const OF_VS_CODE = {
  acceptWord: "editor.action.inlineSuggest.acceptNextWord",
  acceptLine: "editor.action.inlineSuggest.acceptNextLine",
};

/** Dependencies of the commands. */
export interface Parts {
  readonly server: Server;
  readonly bar: StatusBar;
  readonly installer: Installer;
  readonly puller: Puller;
  readonly gate: { readonly hasGrown: boolean; dismissed(): void };
  readonly edits: NextEdits;
  readonly tokens: Tokens;
  readonly panel: Panel;
  readonly milestones: Milestones;
  readonly log: LogOutputChannel;
  /** The sample file to try it in. */
  readonly sample: Uri;
}

export function addCommands(parts: Parts): Disposable[] {
  const { server, installer, puller, gate, edits, tokens, panel, milestones, log, sample } = parts;
  const page = new Explanation(server);
  const register = (name: string, act: (...given: never[]) => unknown): Disposable =>
    commands.registerCommand(`codespec.${name}`, act);
  return [
    page,
    register("showStatus", () => showStatus(parts)),
    register("toggle", toggle),
    register("toggleLanguage", toggleThisLanguage),
    register("explainLast", () => page.show()),
    register("openPage", () => openPage(parts)),
    register("restartServer", () => server.restart()),
    register("reloadDaemon", () => puller.restartDaemon()),
    register("pullModel", () => puller.pullOffered()),
    register("chooseModel", () => puller.choose()),
    register("stopPull", () => puller.stop()),
    register("setUp", () => setUp(stepsOf(parts), sample)),
    register("openSample", () => openSample(sample)),
    register("getStarted", () => milestones.mark(openWalkthrough)),
    register("showLog", () => log.show()),
    register("install", () => installer.install()),
    register("setToken", () => tokens.set()),
    register("forgetToken", () => tokens.forget()),
    register("showAlternatives", () => panel.show()),
    register("insertAlternative", (number?: number) => panel.insert(number)),
    register("openSettings", () => commands.executeCommand("workbench.action.openSettings", "codespec.")),
    ...Object.entries(OF_VS_CODE).map(([name, own]) => register(name, () => commands.executeCommand(own))),
    register("nextAlternative", () => showOther(gate.hasGrown, "showNext")),
    register("previousAlternative", () => showOther(gate.hasGrown, "showPrevious")),
    register("takeEdit", () => edits.take()),
    register("hideEdit", () => edits.dismiss()),
    register("showEdit", () => edits.reveal()),
    register("dismiss", () => {
      gate.dismissed();
      edits.dismissGhost();
      return commands.executeCommand("editor.action.inlineSuggest.hide");
    }),
  ];
}

/** For a text that has grown, VS Code requests no alternatives, because it takes our trigger for the user's. */
function showOther(hasGrown: boolean, which: "showNext" | "showPrevious"): Thenable<unknown> {
  const names = hasGrown ? ["hide", "trigger", which] : [which];
  return commands.executeCommand("runCommands", { commands: names.map((name) => `editor.action.inlineSuggest.${name}`) });
}

function openWalkthrough(): Thenable<unknown> {
  return commands.executeCommand("workbench.action.openWalkthrough", "codespec.codespec#start", false);
}

function stepsOf({ server, installer, puller }: Parts): Steps {
  return {
    isRunning: () => server.process.kind === "running",
    install: () => installer.install(),
    choose: () => puller.choose(),
  };
}

async function showStatus({ bar }: Parts): Promise<void> {
  await bar.refresh();
  const { known } = bar;
  const found = facts(known).map(([label, description]) => ({ label, description, command: "" }));
  const separator = { label: "", kind: QuickPickItemKind.Separator, command: "" };
  const choices = actions(known);
  const chosen = await window.showQuickPick([...found, separator, ...choices], {
    title: headline(known),
    placeHolder: "What to do",
  });
  if (chosen?.command) await commands.executeCommand(chosen.command);
}

interface Action {
  readonly label: string;
  readonly command: string;
}

function actions({ process: { kind: process }, figures, pulling }: Known): Action[] {
  const offered = figures.daemon?.offer?.model;
  const language = window.activeTextEditor?.document.languageId;
  const found: Action[] = [];
  const add = (label: string, command: string): number => found.push({ label, command });
  if (process === "missing") add("$(cloud-download) Install the server", "codespec.install");
  if (pulling) add(`$(close) Stop fetching ${pulling.model}`, "codespec.stopPull");
  else if (offered) add(`$(cloud-download) Pull ${offered}`, "codespec.pullModel");
  add(settings.enabled ? "$(circle-slash) Switch off" : "$(zap) Switch on", "codespec.toggle");
  if (language) {
    add(
      `${settings.completes(language) ? "$(circle-slash) Switch off" : "$(zap) Switch on"} for ${language}`,
      "codespec.toggleLanguage",
    );
  }
  if (process === "running") {
    add("$(question) Explain the last completion", "codespec.explainLast");
    add("$(list-selection) Choose a model", "codespec.chooseModel");
    add("$(debug-restart) Restart the daemon", "codespec.reloadDaemon");
    add("$(globe) Open the live page", "codespec.openPage");
  }
  add("$(rocket) Get started", "codespec.getStarted");
  add("$(refresh) Restart", "codespec.restartServer");
  add("$(output) Show the log", "codespec.showLog");
  add("$(gear) Settings", "codespec.openSettings");
  return found;
}

async function toggleThisLanguage(): Promise<void> {
  const language = window.activeTextEditor?.document.languageId;
  if (language) await toggleLanguage(language);
  else void window.showInformationMessage("No file is open: open one in that language.");
}

async function openPage({ bar }: Parts): Promise<void> {
  await bar.refresh();
  const { daemon } = bar.known.figures;
  if (!daemon) void window.showWarningMessage("The language server does not run: restart codespec first.");
  else if (daemon.state === "ready" || daemon.state === "starting") await env.openExternal(Uri.parse(daemon.page));
  else void window.showWarningMessage(`No daemon answers at ${daemon.url}: it starts when you write code.`);
}

/** A page whose content is generated each time it is opened. */
class Explanation implements Disposable {
  private text = "";
  private readonly changes = new EventEmitter<Uri>();
  private readonly provider = workspace.registerTextDocumentContentProvider("codespec", {
    onDidChange: this.changes.event,
    provideTextDocumentContent: () => this.text,
  });

  constructor(private readonly server: Server) {}

  async show(): Promise<void> {
    this.text = explanation(await this.server.explain());
    this.changes.fire(PAGE);
    await window.showTextDocument(PAGE, { preview: true });
  }

  dispose(): void {
    this.provider.dispose();
    this.changes.dispose();
  }
}
