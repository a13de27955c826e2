/**
 * How far a user has come, for the walkthrough's marks. Knows VS Code's context keys, and that a walkthrough marks a
 * step only when its key becomes true while VS Code knows the walkthrough, which it first does when that is opened.
 */

export type Milestone = "server" | "model" | "suggestion";

export class Milestones {
  private readonly reached = new Set<Milestone>();

  constructor(private readonly set: (key: string, value: boolean) => PromiseLike<unknown>) {}

  reach(one: Milestone): void {
    if (this.reached.has(one)) return;
    this.reached.add(one);
    void this.set(keyOf(one), true);
  }

  /** Opens the walkthrough such that what was reached before is marked. */
  async mark(open: () => PromiseLike<unknown>): Promise<void> {
    const found = [...this.reached];
    await Promise.all(found.map((one) => this.set(keyOf(one), false)));
    await open();
    await Promise.all(found.map((one) => this.set(keyOf(one), true)));
  }
}

export function keyOf(one: Milestone): string {
  return `codespec.reached.${one}`;
}
