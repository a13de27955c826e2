/** One button from nothing to the first suggestion: the server, a model, and a sample file. */

import { commands, Position, Selection, type Uri, window, workspace } from "vscode";
import { SAMPLE_CURSOR, splitSample } from "./sample.ts";

/** The steps of the set-up. */
export interface Steps {
  isRunning(): boolean;
  install(): Promise<void>;
  choose(): Promise<void>;
}

/** Runs the steps. A step that fails reports the error itself. */
export async function setUp(steps: Steps, sample: Uri): Promise<void> {
  if (!steps.isRunning()) await steps.install();
  if (!steps.isRunning()) return;
  await steps.choose();
  await openSample(sample);
}

/** Opens the sample as a new file with the cursor at its mark, and requests a suggestion there. */
export async function openSample(sample: Uri): Promise<void> {
  const text = new TextDecoder().decode(await workspace.fs.readFile(sample));
  const { content, line, character } = splitSample(text, SAMPLE_CURSOR);
  const document = await workspace.openTextDocument({ language: "python", content });
  const editor = await window.showTextDocument(document);
  const at = new Position(line, character);
  editor.selection = new Selection(at, at);
  await commands.executeCommand("editor.action.inlineSuggest.trigger");
}
