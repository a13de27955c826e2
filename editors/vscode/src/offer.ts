/** A better model than the starter pair: what the server says of it, and when the user is asked. Pure. */

/** codespec/offer. `command` fetches the model with the server's own Python. */
export interface Offer {
  readonly model: string;
  readonly bytes: number;
  readonly command: readonly string[];
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

/** Whether what a server sent is one: a program and its words, which are run as they are. */
export function isOffer(value: unknown): value is Offer {
  const { model, bytes, command } = (value ?? {}) as Partial<Offer>;
  const words = Array.isArray(command) && command.length > 1 && command.every((word) => typeof word === "string");
  return typeof model === "string" && typeof bytes === "number" && words;
}
