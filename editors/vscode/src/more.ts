/**
 * Shows more of a text that has grown, only at the position of the last request, and only if nothing changed there and
 * the user did not dismiss it. Pure.
 *
 * VS Code sends no second request for a position while it shows a suggestion there, so the suggestion has to disappear
 * for a moment. To keep that to a frame or two, the longer text is fetched first and is ready when VS Code requests it;
 * to keep it rare, growth is collected for a while. VS Code also sends no request while it waits for an answer at the
 * position, so it is triggered again.
 */

/** A version of a document, a position in it, and the selected entry of the completion list. */
export interface Place {
  readonly uri: string;
  readonly version: number;
  readonly line: number;
  readonly character: number;
  readonly selected: string;
}

/** The editor, as far as the gate needs it. */
export interface Editor<Items> {
  /** Whether the only cursor is at a position. */
  isHere(place: Place): boolean;
  hasSome(items: Items): boolean;
  /** Makes the editor send another request. */
  refresh(): void;
}

/** A request, and a function that repeats it. */
interface Asked<Items> {
  readonly place: Place;
  readonly again: () => Promise<Items | null>;
}

/** Items that were fetched before the editor requests them. */
interface Ready<Items> {
  readonly place: Place;
  readonly items: Items;
}

export const GATHER_MS = 400; // between two answers for one position, and until the editor is triggered again
export const MAX_TOLD = 5; // triggers for one text

export class MoreGate<Items> {
  private asked: Asked<Items> | null = null;
  private ready: Ready<Items> | null = null;
  /**
   * Whether the shown text was fetched in advance. It has no alternatives, although the editor believes it requested
   * it.
   */
  hasGrown = false;
  private refuse = false; // the ready items were dismissed before the editor requested them
  private timer: NodeJS.Timeout | undefined; // for the next offer
  private reminder: NodeJS.Timeout | undefined; // triggers the editor again if it has not requested the ready items

  constructor(
    private readonly editor: Editor<Items>,
    private readonly gather = GATHER_MS,
  ) {}

  /** Answers a request with the ready items or those that `ask` fetches; null for none. */
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

  /** Handles a dismissal by the user. */
  dismissed(): void {
    this.stop();
    this.asked = null;
    this.refuse = this.ready !== null;
  }

  /** Handles the server's notification that its last answer has grown. */
  grown(uri: string, version: number): void {
    const { asked } = this;
    if (asked?.place.uri !== uri || asked.place.version !== version) return;
    this.timer ??= setTimeout(() => void this.offer(), this.gather);
  }

  private async offer(): Promise<void> {
    this.timer = undefined;
    const { asked } = this;
    if (!asked || !this.editor.isHere(asked.place)) return;
    const items = await asked.again().catch(() => null); // the client has reported the error
    if (items === null || this.asked !== asked) return;
    if (!this.editor.hasSome(items) || !this.editor.isHere(asked.place)) return;
    this.ready = { place: asked.place, items };
    this.tell(this.ready, MAX_TOLD);
  }

  /** Triggers the editor until it requests the ready items, at most MAX_TOLD times. */
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
