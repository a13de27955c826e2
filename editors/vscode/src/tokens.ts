/**
 * The daemon's token in VS Code's secret storage, which is the system's keychain if there is one. The language server
 * gets it as an environment variable, never as a setting.
 */

import { ConfigurationTarget, type LogOutputChannel, type SecretStorage, window, workspace } from "vscode";
import { tokenFault, whatOf } from "./token.ts";

const KEY = "codespec.token";
export const VARIABLE = "CODESPEC_SERVE_TOKEN";

export class Tokens {
  constructor(
    private readonly secrets: SecretStorage,
    private readonly log: LogOutputChannel,
  ) {}

  /** Called when the token was set or deleted, in this window or another. */
  onChange(act: () => void): { dispose(): unknown } {
    return this.secrets.onDidChange(({ key }) => {
      if (key === KEY) act();
    });
  }

  /** Returns the variables for the server's process. */
  async variables(): Promise<Record<string, string>> {
    const token = await this.secrets.get(KEY);
    return token ? { [VARIABLE]: token } : {};
  }

  async set(): Promise<void> {
    const token = await window.showInputBox({
      title: "codespec: the daemon's token",
      prompt: "What `codespec serve --token-file` has. VS Code keeps it in its secret storage.",
      password: true,
      ignoreFocusOut: true,
      validateInput: (text) => tokenFault(text.trim()),
    });
    if (token) await this.secrets.store(KEY, token.trim());
  }

  async forget(): Promise<void> {
    await this.secrets.delete(KEY);
    void window.showInformationMessage("codespec: the token is forgotten.");
  }

  /** Removes a token from the settings, where it is plain text and may be synchronized to other machines. */
  async moveOld(): Promise<void> {
    const settings = workspace.getConfiguration("codespec");
    const old = settings.get("token", "").trim();
    const what = whatOf(old, (await this.secrets.get(KEY)) ?? "");
    if (what === "nothing") return;
    if (what === "tell") {
      void window.showWarningMessage(`codespec: codespec.token can't be used: ${tokenFault(old)}`);
      return;
    }
    if (what === "move") await this.secrets.store(KEY, old);
    await settings.update("token", undefined, ConfigurationTarget.Global);
    this.log.info(`codespec.token: ${what === "move" ? "moved to the secret storage" : "removed from the settings"}`);
    void window.showInformationMessage(
      what === "move"
        ? "codespec: the token was in your settings as plain text. It is in VS Code's secret storage now."
        : "codespec: the token was removed from your settings, because one is in VS Code's secret storage.",
    );
  }
}
