/** Splits a stream of text into server-sent events, wherever its pieces are cut. */

export interface ServerEvent {
  readonly name: string;
  readonly data: string;
}

export class EventReader {
  private rest = "";

  /** Returns the events that this piece completes. */
  push(piece: string): ServerEvent[] {
    const blocks = (this.rest + piece).split("\n\n");
    this.rest = blocks.pop() ?? "";
    return blocks.map(parse);
  }
}

function parse(block: string): ServerEvent {
  let name = "";
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return { name, data: data.join("\n") };
}
