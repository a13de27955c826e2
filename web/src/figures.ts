/** The figures of this visit: how much each source wrote, how fast, and the acceptance by context. */

import { element, part, size } from "./dom.ts";
import type { Trace } from "./trace.ts";
import type { Counts, Stats } from "./wire.ts";

/** Counters by name. */
export class Tally {
  readonly counts = new Map<string, { drafted: number; accepted: number }>();

  add(name: string, { drafted, accepted }: Counts): void {
    const mine = this.counts.get(name) ?? { drafted: 0, accepted: 0 };
    mine.drafted += drafted;
    mine.accepted += accepted;
    this.counts.set(name, mine);
  }

  /** Returns the counters, sorted by drafted tokens. */
  sorted(): [string, Counts][] {
    return [...this.counts].filter(([, { drafted }]) => drafted).sort((a, b) => b[1].drafted - a[1].drafted);
  }
}

/** Returns tokens per second, excluding prefill and the wait for a slot, which drafts do not affect. */
export function speedOf(stats: Stats): number {
  return (stats.committed * 1000) / Math.max(stats.total_ms - stats.prefill_ms - stats.queue_ms, 0.01);
}

export class Figures {
  private readonly contexts = new Tally();
  private readonly counted = new WeakMap<Trace, number>(); // number of a trace's rounds in the sums

  /** Adds the new rounds of a trace to the figures. */
  show(trace: Trace): void {
    this.count(trace);
    part("contexts").replaceChildren(...rowsOf(this.contexts));
    part("authors").replaceChildren(...authorsOf(trace));
    if (trace.done) this.finish(trace.done.stats, trace.done.cached_tokens, trace.done.new_tokens);
    else part("per-round").textContent = ratio(trace.rounds.length, trace);
  }

  /** Shows the figures of a run without drafts beside those of the last one. */
  compare(stats: Stats, plain: Stats): void {
    showSpeeds(speedOf(stats), speedOf(plain), "measured just now");
  }

  private count(trace: Trace): void {
    const begun = this.counted.get(trace) ?? 0;
    for (const round of trace.rounds.slice(begun)) this.contexts.add(round.context, round);
    this.counted.set(trace, trace.rounds.length);
  }

  private finish(stats: Stats, cached: number, fresh: number): void {
    part("saved").textContent = savedBy(stats);
    part("per-round").textContent = stats.rounds ? (stats.committed / stats.rounds).toFixed(2) : "–";
    part("accepted").textContent = stats.drafted ? `${Math.round((100 * stats.accepted) / stats.drafted)} %` : "–";
    part("first-piece").textContent = `${stats.first_piece_ms.toFixed(0)} ms`;
    part("prompt").textContent = `${cached} + ${fresh}`;
    const speed = speedOf(stats);
    const priced = stats.plain_ms > 0 && stats.decode_ms > 0;
    showSpeeds(speed, priced ? (speed * stats.decode_ms) / stats.plain_ms : null, "by the cost table");
  }
}

/** Returns a sentence about the time that drafts saved. */
export function savedBy({ rounds, committed, decode_ms, plain_ms }: Stats): string {
  if (!rounds) return "";
  const steps = `${committed} tokens in ${rounds} ${rounds === 1 ? "step" : "steps"} of the big model`;
  if (!plain_ms || !decode_ms) return `${steps}; alone it needs a step for each.`;
  const less = plain_ms - decode_ms;
  const size = Math.abs(less);
  const time = size < 1000 ? `${size.toFixed(0)} ms` : `${(size / 1000).toFixed(1)} s`;
  return `${steps}, which alone needs a step for each: ${time} ${less >= 0 ? "saved" : "lost"}.`;
}

function ratio(rounds: number, trace: Trace): string {
  const tokens = trace.rounds.reduce((sum, round) => sum + round.accepted + 1, 0);
  return rounds ? (tokens / rounds).toFixed(2) : "–";
}

function showSpeeds(own: number, plain: number | null, how: string): void {
  const most = Math.max(own, plain ?? 0, 1);
  const rows = [speedRow("With guesses", own, most, "own")];
  if (plain !== null) rows.push(speedRow(`Big model alone, ${how}`, plain, most, "plain"));
  part("speeds").replaceChildren(...rows);
  part("times").textContent = plain ? `${(own / plain).toFixed(2)} ×` : "–";
}

function speedRow(name: string, speed: number, most: number, kind: string): HTMLElement {
  return element(
    "div",
    { class: `bar-row ${kind}` },
    element("span", { class: "bar-name" }, name),
    element("span", { class: "bar" }, size(element("span", { class: "fill" }), "--part", speed / most)),
    element("span", { class: "bar-value" }, `${speed.toFixed(0)} tokens/s`),
  );
}

function rowsOf(tally: Tally): HTMLElement[] {
  return tally
    .sorted()
    .map(([name, { drafted, accepted }]) =>
      element(
        "div",
        { class: "bar-row context" },
        element("span", { class: "bar-name" }, name.replace("_", " ")),
        element("span", { class: "bar" }, size(element("span", { class: "fill" }), "--part", accepted / drafted)),
        element("span", { class: "bar-value" }, `${accepted} of ${drafted}`),
      ),
    );
}

/** Returns a strip with the number of characters from each source. */
function authorsOf(trace: Trace): HTMLElement[] {
  const sums = new Map<string, number>();
  for (const run of trace.runs()) {
    sums.set(run.author, (sums.get(run.author) ?? 0) + run.to - run.from);
    // shown only once this source has written something
    document.querySelector(`.legend .by-${run.author}`)?.removeAttribute("hidden");
  }
  const all = Math.max(trace.text.length, 1);
  return [...sums].map(([author, length]) => {
    const share = Math.round((100 * length) / all);
    const made = element(
      "span",
      { class: `share by-${author}`, title: `${share} % of the text` },
      share >= 9 ? `${share} %` : "",
    );
    return size(made, "--part", length / all);
  });
}
