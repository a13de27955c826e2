/** The server's offer of a better model than the starter pair, and when to ask the user about it. Pure. */

/** The fields of codespec/offer that are used: a name for `codespec models pull`, and the size of the download. */
export interface Offer {
  readonly model: string;
  readonly bytes: number;
}

export const AGAIN_MS = 7 * 24 * 3600 * 1000; // "not now" holds for a week, in all windows

/** The stored result of the last question: its time, and whether the answer was "never". */
export interface Asked {
  readonly at: number;
  readonly never: boolean;
}

export function mayAsk(asked: Asked | undefined, now: number): boolean {
  return !asked || (!asked.never && now - asked.at >= AGAIN_MS);
}

export function question({ model, bytes }: Offer): string {
  const size = `${Math.round(bytes / 1e6)} MB`;
  return (
    `codespec completes with its small starter pair. Pull ${model} (${size}), a real model? ` +
    "It runs on your machine like the starter pair."
  );
}

/** Whether a server's value is an offer. The name becomes a word of a command line, so it must not be a flag. */
export function isOffer(value: unknown): value is Offer {
  const { model, bytes } = (value ?? {}) as Partial<Offer>;
  return typeof model === "string" && /^\w[\w./-]*$/.test(model) && typeof bytes === "number";
}
