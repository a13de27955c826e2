/** The settings of this window: read when used, and changed by commands. */

import { ConfigurationTarget, workspace } from "vscode";

const SECTION = "codespec";

export const settings = {
  get command(): string {
    return text("command");
  },
  get python(): string {
    return text("python");
  },
  get installFrom(): string {
    return text("installFrom");
  },
  get enabled(): boolean {
    return workspace.getConfiguration(SECTION).get("enabled", true);
  },
  get nextEdit(): "hint" | "eager" | "off" {
    return workspace.getConfiguration(SECTION).get("nextEdit", "hint");
  },
  completes(languageId: string): boolean {
    return workspace.getConfiguration(SECTION).get<Record<string, boolean>>("languages", {})[languageId] ?? true;
  },
};

/** Returns the settings for the server, which ignores those of the extension. The token is not among them. */
export function forServer(): Record<string, unknown> {
  const all = JSON.parse(JSON.stringify(workspace.getConfiguration(SECTION))) as Record<string, unknown>;
  delete all["token"];
  return all;
}

/** Switches completion on or off everywhere; returns the new state. */
export async function toggle(): Promise<boolean> {
  const on = !settings.enabled;
  await update("enabled", on);
  return on;
}

/** Switches one language on or off; returns the new state. */
export async function toggleLanguage(languageId: string): Promise<boolean> {
  const on = !settings.completes(languageId);
  const found = workspace.getConfiguration(SECTION).inspect<Record<string, boolean>>("languages");
  await update("languages", { ...(found?.workspaceValue ?? found?.globalValue), [languageId]: on });
  return on;
}

/** Sets the model that the daemon uses from its next start on. */
export function chooseModel(name: string): Promise<void> {
  return update("model", name);
}

/** Changes a value where it was set, because a workspace's value would hide the user's. */
async function update(name: string, value: unknown): Promise<void> {
  const configuration = workspace.getConfiguration(SECTION);
  const inWorkspace = configuration.inspect(name)?.workspaceValue !== undefined;
  await configuration.update(name, value, inWorkspace ? ConfigurationTarget.Workspace : ConfigurationTarget.Global);
}

function text(name: string): string {
  return workspace.getConfiguration(SECTION).get(name, "");
}
