/** The settings of this window, read when used, and how they are switched. Knows VS Code's configuration. */

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
  completes(languageId: string): boolean {
    return workspace.getConfiguration(SECTION).get<Record<string, boolean>>("languages", {})[languageId] ?? true;
  },
};

/** For the server, which reads what is its own; a token is no setting of its. */
export function forServer(): Record<string, unknown> {
  const all = JSON.parse(JSON.stringify(workspace.getConfiguration(SECTION))) as Record<string, unknown>;
  delete all["token"];
  return all;
}

/** Switches everything; returns whether it is on now. */
export async function toggle(): Promise<boolean> {
  const on = !settings.enabled;
  await update("enabled", on);
  return on;
}

/** Switches one language; returns whether it is on now. */
export async function toggleLanguage(languageId: string): Promise<boolean> {
  const on = !settings.completes(languageId);
  const found = workspace.getConfiguration(SECTION).inspect<Record<string, boolean>>("languages");
  await update("languages", { ...(found?.workspaceValue ?? found?.globalValue), [languageId]: on });
  return on;
}

/** The model that the daemon is to have from its next start on. */
export function chooseModel(name: string): Promise<void> {
  return update("model", name);
}

/** Where the value comes from is where it is changed: a workspace's own value would hide the user's. */
async function update(name: string, value: unknown): Promise<void> {
  const configuration = workspace.getConfiguration(SECTION);
  const inWorkspace = configuration.inspect(name)?.workspaceValue !== undefined;
  await configuration.update(name, value, inWorkspace ? ConfigurationTarget.Workspace : ConfigurationTarget.Global);
}

function text(name: string): string {
  return workspace.getConfiguration(SECTION).get(name, "");
}
