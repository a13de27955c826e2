/** The line with the daemon's state, and the form for its token. */

import type { Daemon, DaemonError, Health } from "./daemon.ts";
import { part } from "./dom.ts";

const WAIT_MS: Record<Health["state"], number> = {
  ready: 20_000,
  idle: 20_000,
  starting: 700,
  error: 5000,
  away: 2500,
  token: 60_000,
};
const WORDS: Record<Health["state"], string> = {
  ready: "ready",
  idle: "idle, models freed",
  starting: "starting",
  error: "error",
  away: "no answer",
  token: "token needed",
};

export class StateLine {
  private timer = 0;
  private state: Health["state"] | "" = "";

  constructor(
    private readonly daemon: Daemon,
    private readonly ready: () => void,
  ) {
    part("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const field = part<HTMLInputElement>("token");
      daemon.useToken(field.value);
      field.value = "";
      void this.look();
    });
  }

  /** Checks the health now, and again when it may have changed. */
  async look(): Promise<void> {
    clearTimeout(this.timer);
    const health = await this.daemon.health();
    this.show(health);
    this.timer = window.setTimeout(() => void this.look(), WAIT_MS[health.state]);
  }

  /** Shows the sentence of a failed completion until the next check. */
  failed(error: DaemonError): void {
    if (error.status === 401 || error.status === 503 || error.status === 0) void this.look();
    else this.show({ state: "error", said: error.message });
  }

  /** Clears the error, or the note about freed models, after a successful completion. */
  fine(): void {
    if (this.state === "error" || this.state === "idle") void this.look();
  }

  private show({ state, said }: Health): void {
    const line = part("state");
    line.dataset["state"] = state;
    part("state-word").textContent = WORDS[state];
    part("state-said").textContent = said;
    part("token-form").hidden = state !== "token";
    if (state === "token" && this.state !== "token") part("token").focus();
    const answers = state === "ready" || state === "idle";
    const fresh = answers && this.state !== "ready" && this.state !== "idle";
    this.state = state;
    if (fresh) this.ready();
  }
}
