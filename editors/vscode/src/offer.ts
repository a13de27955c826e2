/** A better model than the starter pair: what the server says of it, and when the user is asked. Pure. */

/** codespec/offer, as far as it is used: a name for `codespec models pull`, and what that fetches. */
export interface Offer {
  readonly model: string;
  readonly bytes: number;
}

export const AGAIN_MS = 7 * 24 * 3600 * 1000; // "not now" holds for a week, in all windows

/** What is kept of earlier answers: when the user was asked last, and whether the answer was never. */
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

/** Whether what a server sent is one; the name becomes a word of a command line, and must be no flag. */
export function isOffer(value: unknown): value is Offer {
  const { model, bytes } = (value ?? {}) as Partial<Offer>;
  return typeof model === "string" && /^\w[\w./-]*$/.test(model) && typeof bytes === "number";
}
