/** How often the server may be started again by itself. Pure. */

export const MOST = 3;
export const WITHIN_MS = 180_000;

export class Restarts {
  private readonly times: number[] = [];

  /** Whether one more start is allowed now; it is counted. */
  allow(now: number): boolean {
    while (this.times.length && now - this.times[0]! > WITHIN_MS) this.times.shift();
    if (this.times.length >= MOST) return false;
    this.times.push(now);
    return true;
  }

  /** The user asks for another try. */
  forget(): void {
    this.times.length = 0;
  }
}
