/** Creates the parts of the extension, connects them and disposes of them. */

import {
  commands,
  type ConfigurationChangeEvent,
  type ExtensionContext,
  type LogOutputChannel,
  type TextEditorSelectionChangeEvent,
  Uri,
  window,
  workspace,
} from "vscode";
import { addCommands } from "./commands.ts";
import { EditView } from "./edit_view.ts";
import { activeEditor, middleware } from "./inline.ts";
import { Installer } from "./installer.ts";
import { Milestones } from "./milestones.ts";
import { MoreGate } from "./more.ts";
import { Panel } from "./panel.ts";
import { Puller } from "./puller.ts";
import { type Listener, Server } from "./server.ts";
import { StatusBar } from "./status_bar.ts";
import { Tokens } from "./tokens.ts";

const REST_MS = 150; // between the last movement of the cursor and telling the server its place
const NEEDS_RESTART = ["codespec.command", "codespec.completion"];
let running: Server | undefined;

export async function activate(context: ExtensionContext): Promise<void> {
  const { globalStorageUri, globalState, secrets, subscriptions } = context;
  const log = window.createOutputChannel("codespec", { log: true });
  const folder = globalStorageUri.fsPath;
  const environment = `${folder}/server`;
  const gate = new MoreGate(activeEditor);
  const listener: Listener = {
    told: (status) => bar.tell(status),
    grown: (uri, version) => gate.grown(uri, version),
    offered: (offer) => void puller.offer(offer),
  };
  const { version } = context.extension.packageJSON as { version: string };
  const milestones = new Milestones((key, value) => commands.executeCommand("setContext", key, value));
  const tokens = new Tokens(secrets, log);
  const server: Server = new Server(
    { version, environment, folder, variables: () => tokens.variables() },
    log,
    middleware(gate, answered, focus, (document, position) => view.ghostAt(document, position)),
    listener,
  );
  const view = new EditView(server, log);
  const bar = new StatusBar(server);
  const installer = new Installer(server, environment, folder, context.asAbsolutePath("server"), log, globalState);
  const puller = new Puller(server, folder, log, globalState, milestones, () => {
    bar.pulling = puller.pulling;
    bar.draw();
  });
  const panel = new Panel((document, position) => server.alternatives(document, position));
  const sample = Uri.joinPath(context.extensionUri, "walkthrough", "sample.txt");
  running = server;

  let resting: NodeJS.Timeout | undefined;
  function focus(): void {
    clearTimeout(resting);
    const editor = window.activeTextEditor;
    const shown = ["file", "untitled", "vscode-notebook-cell"];
    if (editor && shown.includes(editor.document.uri.scheme)) {
      server.focus(editor.document.uri.toString(), editor.selection.active);
    }
  }
  function moved(event: TextEditorSelectionChangeEvent): void {
    if (event.textEditor !== window.activeTextEditor) return;
    clearTimeout(resting);
    resting = setTimeout(focus, REST_MS);
  }
  function answered(some: boolean): void {
    bar.refreshSoon();
    if (some) milestones.reach("suggestion");
  }
  function changed(): void {
    const runs = server.process.kind === "running";
    void commands.executeCommand("setContext", "codespec.running", runs);
    if (runs) milestones.reach("server");
    bar.changed();
    focus();
    void complain(server, log);
  }
  function configured(event: ConfigurationChangeEvent): void {
    if (event.affectsConfiguration("codespec")) bar.draw();
    if (NEEDS_RESTART.some((name) => event.affectsConfiguration(name))) void server.restart();
  }
  subscriptions.push(
    log,
    bar,
    panel,
    view,
    server.onChange(changed),
    tokens.onChange(() => void server.restart()),
    window.onDidChangeActiveTextEditor(focus),
    window.onDidChangeTextEditorSelection(moved),
    { dispose: () => clearTimeout(resting) },
    workspace.onDidChangeConfiguration(configured),
    ...addCommands({ server, bar, installer, puller, gate, edits: view.edits, tokens, panel, milestones, log, sample }),
  );
  await tokens.moveOld();
  await server.start();
  if (server.process.kind === "missing") void installer.offer();
}

export async function deactivate(): Promise<void> {
  await running?.stop();
}

/** Reports once that the server has stopped or has another version, with buttons to fix it. */
async function complain(server: Server, log: LogOutputChannel): Promise<void> {
  if (server.process.kind === "running" && server.process.fault) return complainOfVersion(server.process.fault, log);
  if (server.process.kind !== "failed") return;
  const { sentence } = server.process;
  log.error(sentence);
  const chosen = await window.showErrorMessage(`codespec: ${sentence}`, "Show Log", "Settings", "Restart");
  if (chosen === "Show Log") log.show();
  if (chosen === "Settings") await commands.executeCommand("codespec.openSettings");
  if (chosen === "Restart") await server.restart();
}

async function complainOfVersion(sentence: string, log: LogOutputChannel): Promise<void> {
  log.warn(sentence);
  const chosen = await window.showWarningMessage(`codespec: ${sentence}`, "Install the Server", "Settings");
  if (chosen === "Install the Server") await commands.executeCommand("codespec.install");
  if (chosen === "Settings") await commands.executeCommand("codespec.openSettings");
}
