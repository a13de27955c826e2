/** The server's state in words, for the status bar and the explanation. Pure. */

/** The state of the server's process, as the extension sees it. */
export type Process =
  | { readonly kind: "starting" | "stopped" }
  | { readonly kind: "running"; readonly version: string; readonly fault: string }
  | { readonly kind: "installing"; readonly step: string }
  | { readonly kind: "missing" | "failed"; readonly sentence: string };

/** The parameters of didChangeStatus. */
export interface Told {
  readonly kind: "Normal" | "Warning" | "Error" | "Inactive";
  readonly message: string;
  readonly busy: boolean;
}

/** The fields of codespec/status that are shown. */
export interface Figures {
  readonly daemon?: {
    readonly url: string;
    readonly page: string;
    readonly state: string;
    readonly message: string;
    readonly version: string;
    readonly target: string;
    readonly drafter: string;
    readonly offer?: { readonly model: string } | null;
  };
  readonly last?: {
    readonly committed: number;
    readonly drafted: number;
    readonly accepted: number;
    readonly speedUp: number | null;
  } | null;
  readonly counters?: {
    readonly shown: number;
    readonly accepted: number;
    readonly partlyAccepted: number;
    readonly acceptance: number;
    readonly lastMs: number | null;
    readonly medianMs: number | null;
  };
}

export type Mood = "Normal" | "Busy" | "Inactive" | "Off" | "Warning" | "Error";

/** A download of a model. */
export interface Pulling {
  readonly model: string;
  readonly percent: number;
}

/** The whole state. `enabled` is the setting. */
export interface Known {
  readonly pulling?: Pulling | undefined;
  readonly process: Process;
  readonly told: Told;
  readonly figures: Figures;
  readonly enabled: boolean;
}

const ICONS: Record<Mood, string> = {
  Normal: "$(zap)",
  Busy: "$(loading~spin)",
  Inactive: "$(circle-slash)",
  Off: "$(circle-large-outline)",
  Warning: "$(warning)",
  Error: "$(error)",
};

export function moodOf({ process, told, enabled }: Known): Mood {
  if (process.kind === "missing") return "Warning";
  if (process.kind === "failed") return "Error";
  if (process.kind === "starting" || process.kind === "installing") return "Busy";
  if (!enabled || process.kind === "stopped") return "Off";
  if (told.kind !== "Normal") return told.kind;
  if (process.kind === "running" && process.fault) return "Warning";
  return told.busy ? "Busy" : "Normal";
}

/** Returns one sentence that explains the state. */
export function sentenceOf(known: Known): string {
  const { process, told, enabled } = known;
  switch (process.kind) {
    case "missing":
    case "failed":
      return process.sentence;
    case "installing":
      return `The server is being installed: ${process.step}.`;
    case "starting":
      return "The server is starting.";
    case "stopped":
      return "The server is stopped.";
    case "running":
      if (!enabled) return "codespec is switched off.";
      return (told.kind === "Normal" && process.fault) || told.message || "codespec is ready.";
  }
}

/** Returns the text of the status bar, with the acceptance rate and the last answer's time if known. */
export function barText(known: Known): string {
  const mood = moodOf(known);
  const { counters } = known.figures;
  if (known.pulling) return `$(cloud-download) codespec · ${known.pulling.percent} %`;
  const parts = ["codespec"];
  if (mood === "Normal" && counters?.shown) parts.push(share(counters.acceptance));
  if (mood === "Normal" && typeof counters?.lastMs === "number") parts.push(milliseconds(counters.lastMs));
  if (mood === "Off" || mood === "Inactive") parts.push(mood.toLowerCase());
  return `${ICONS[mood]} ${parts.join(" · ")}`;
}

/** Returns the text for screen readers and the first line of the tooltip. */
export function headline(known: Known): string {
  const { pulling } = known;
  const fetched = pulling ? ` ${pulling.model} is being fetched: ${pulling.percent} %.` : "";
  return `${moodOf(known)}: ${sentenceOf(known)}${fetched}`;
}

/** Returns the details below the headline, one name and value per line. */
export function facts({ process, figures: { daemon, last, counters } }: Known): [string, string][] {
  const found: [string, string][] = [];
  if (daemon?.target) found.push(["model", daemon.target]);
  if (daemon?.drafter) found.push(["drafter", daemon.drafter]);
  if (daemon)
    found.push([
      "daemon",
      daemon.state === "ready" ? `${daemon.url}, ${daemon.version}` : `${daemon.url}, ${stateOf(daemon)}`,
    ]);
  if (process.kind === "running") found.push(["language server", process.version]);
  if (counters?.shown) {
    const taken = counters.accepted + counters.partlyAccepted;
    found.push(["taken", `${share(counters.acceptance)} (${taken} of ${counters.shown} suggestions)`]);
  }
  if (typeof counters?.lastMs === "number" && typeof counters.medianMs === "number") {
    found.push(["answers", `${milliseconds(counters.lastMs)} the last, ${milliseconds(counters.medianMs)} the median`]);
  }
  if (last?.drafted) {
    const faster = last.speedUp ? `, ${last.speedUp.toFixed(1)} × as fast as plain decoding` : "";
    found.push(["last draft", `${last.accepted} of ${last.drafted} tokens right${faster}`]);
  }
  return found;
}

function stateOf({ state, message }: { readonly state: string; readonly message: string }): string {
  return state === "absent" ? "not running" : message || state;
}

function share(part: number): string {
  return `${Math.round(part * 100)} %`;
}

function milliseconds(value: number): string {
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
}
