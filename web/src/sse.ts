/** Server-sent events out of a stream of text, however it is cut. Knows the format; knows no names and no JSON. */

export interface ServerEvent {
  readonly name: string;
  readonly data: string;
}

export class EventReader {
  private rest = "";

  /** The events that are whole with this piece. */
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
