/** Work that begins with a call and ends with an event elsewhere: one at a time. Pure. */

export class Single {
  private busy = false;

  /** Begins it, unless one is under way: that one counts from before its beginning. What fails to begin has ended. */
  async begin(start: () => PromiseLike<unknown>): Promise<void> {
    if (this.busy) return;
    this.busy = true;
    try {
      await start();
    } catch (error) {
      this.end();
      throw error;
    }
  }

  /** It has ended; often before `begin` returns. */
  end(): void {
    this.busy = false;
  }
}
