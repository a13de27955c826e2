/**
 * The steps of the walkthrough that a user has completed. VS Code marks a step only if its context key becomes true
 * after the walkthrough was opened for the first time.
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

  /** Opens the walkthrough with the steps marked that were completed before. */
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
