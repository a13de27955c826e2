/** Limits the automatic restarts of the server. Pure. */

export const MAX = 3;
export const WITHIN_MS = 180_000;

export class Restarts {
  private readonly times: number[] = [];

  /** Returns whether another start is allowed now, and counts it. */
  allow(now: number): boolean {
    while (this.times.length && now - this.times[0]! > WITHIN_MS) this.times.shift();
    if (this.times.length >= MAX) return false;
    this.times.push(now);
    return true;
  }

  /** Resets the count, at the user's request. */
  forget(): void {
    this.times.length = 0;
  }
}
