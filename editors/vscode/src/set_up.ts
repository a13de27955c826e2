/** One button from nothing to the first suggestion: the server, a model, a sample to try it in. Knows VS Code. */

import { commands, Position, Selection, type Uri, window, workspace } from "vscode";
import { SAMPLE_CURSOR, splitSample } from "./sample.ts";

/** What each step is asked of. */
export interface Steps {
  isRunning(): boolean;
  install(): Promise<void>;
  choose(): Promise<void>;
}

/** A step that did not lead to its end has said why. */
export async function setUp(steps: Steps, sample: Uri): Promise<void> {
  if (!steps.isRunning()) await steps.install();
  if (!steps.isRunning()) return;
  await steps.choose();
  await openSample(sample);
}

/** The sample as a new file, with the cursor where something is to be written, and asks there. */
export async function openSample(sample: Uri): Promise<void> {
  const text = new TextDecoder().decode(await workspace.fs.readFile(sample));
  const { content, line, character } = splitSample(text, SAMPLE_CURSOR);
  const document = await workspace.openTextDocument({ language: "python", content });
  const editor = await window.showTextDocument(document);
  const at = new Position(line, character);
  editor.selection = new Selection(at, at);
  await commands.executeCommand("editor.action.inlineSuggest.trigger");
}
