/**
 * Shows more of a text that has grown: only at the place that was asked about last, as long as nothing changed there
 * and nobody dismissed it. Pure; knows no editor.
 *
 * VS Code does not ask twice for one place while it shows something there, so what is shown has to go for a moment. To
 * make that a frame or two, the longer text is fetched first and is ready when VS Code asks; to make it seldom, growth
 * is gathered for a while. While VS Code waits for an answer at the place it does not ask either, so it is told again.
 */

/** A document's text at a time, a place in it, and the entry of the list of completions that is selected. */
export interface Place {
  readonly uri: string;
  readonly version: number;
  readonly line: number;
  readonly character: number;
  readonly selected: string;
}

/** What the gate needs of an editor. */
export interface Editor<Items> {
  /** Whether the only cursor is at a place. */
  isHere(place: Place): boolean;
  hasSome(items: Items): boolean;
  /** Makes it ask again. */
  refresh(): void;
}

/** A question, and how it is asked once more. */
interface Asked<Items> {
  readonly place: Place;
  readonly again: () => Promise<Items | null>;
}

/** What was fetched before the editor asks for it. */
interface Ready<Items> {
  readonly place: Place;
  readonly items: Items;
}

export const GATHER_MS = 400; // between two answers for one place, and until an editor that did not ask is told again
export const MOST_TOLD = 5; // times that it is told to ask for one text

export class MoreGate<Items> {
  private asked: Asked<Items> | null = null;
  private ready: Ready<Items> | null = null;
  /** Whether what the editor shows was fetched for it, and so has no alternatives, though the editor believes it asked. */
  hasGrown = false;
  private refuse = false; // what is ready: it was dismissed before the editor asked
  private timer: NodeJS.Timeout | undefined; // of the next offer
  private reminder: NodeJS.Timeout | undefined; // that what is ready was not asked for

  constructor(
    private readonly editor: Editor<Items>,
    private readonly gather = GATHER_MS,
  ) {}

  /** A question comes: what is ready for it, or what `ask` fetches; null for nothing. */
  async answer(
    place: Place,
    ask: () => Promise<Items | null>,
    again: () => Promise<Items | null>,
  ): Promise<Items | null> {
    const { ready, refuse } = this;
    const isReady = ready !== null && isSame(ready.place, place);
    this.ready = null;
    this.refuse = false;
    this.hasGrown = isReady;
    if (isReady && refuse) return null;
    if (!isReady) this.stop();
    this.asked = { place, again };
    return isReady ? ready.items : ask();
  }

  /** The user wants none of it. */
  dismissed(): void {
    this.stop();
    this.asked = null;
    this.refuse = this.ready !== null;
  }

  /** The server says that there is more of what it answered last. */
  grown(uri: string, version: number): void {
    const { asked } = this;
    if (asked?.place.uri !== uri || asked.place.version !== version) return;
    this.timer ??= setTimeout(() => void this.offer(), this.gather);
  }

  private async offer(): Promise<void> {
    this.timer = undefined;
    const { asked } = this;
    if (!asked || !this.editor.isHere(asked.place)) return;
    const items = await asked.again().catch(() => null); // the client has told why
    if (items === null || this.asked !== asked) return;
    if (!this.editor.hasSome(items) || !this.editor.isHere(asked.place)) return;
    this.ready = { place: asked.place, items };
    this.tell(this.ready, MOST_TOLD);
  }

  /** Has the editor ask for what is ready; so many times, as long as it does not. */
  private tell(ready: Ready<Items>, times: number): void {
    clearTimeout(this.reminder);
    if (times === 0 || this.ready !== ready || !this.editor.isHere(ready.place)) return;
    this.editor.refresh();
    this.reminder = setTimeout(() => this.tell(ready, times - 1), this.gather);
  }

  private stop(): void {
    clearTimeout(this.timer);
    clearTimeout(this.reminder);
    this.timer = undefined;
  }
}

function isSame(one: Place, other: Place): boolean {
  return (Object.keys(one) as (keyof Place)[]).every((name) => one[name] === other[name]);
}
