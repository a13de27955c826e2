/** The models to choose from: the rows of `codespec models list --json`, those that fit this machine first. Pure. */

export interface Row {
  readonly name: string;
  readonly title?: string;
  readonly here: string;
  readonly download?: number;
  readonly memory?: number;
  readonly fits?: boolean | null;
  readonly licence?: string | null;
  readonly gated?: boolean;
  readonly edits?: string;
}

export interface Listing {
  readonly memory: number | null;
  readonly models: readonly Row[];
  readonly best: string;
}

export interface Choice {
  readonly model: string;
  readonly label: string;
  readonly description: string;
  readonly detail: string;
}

/** Parses the program's output. Throws SyntaxError if it is not a list of models. */
export function readListing(text: string): Listing {
  const found = JSON.parse(text) as Partial<Listing> | null;
  if (!Array.isArray(found?.models)) throw new SyntaxError("no list of models");
  return { memory: found.memory ?? null, models: found.models, best: found.best ?? "" };
}

/** Returns the models for completion that fit: the recommended one, then those already pulled, then by size. */
export function choices(listing: Listing): Choice[] {
  const { best } = listing;
  const rank = ({ name, here, memory = 0 }: Row): number =>
    (name === best ? -2e15 : here === "pulled" ? -1e15 : 0) + memory;
  return listing.models
    .filter(({ fits, download, edits }) => fits !== false && download !== undefined && !edits)
    .sort((a, b) => rank(a) - rank(b))
    .map((row) => ({
      model: row.name,
      label: row.name === best ? `$(star-full) ${row.name}` : row.name,
      description: row.name === best ? "recommended for this machine" : "",
      detail: detailOf(row),
    }));
}

/** Returns the title of the list. */
export function headingOf({ memory }: Listing): string {
  const has = memory === null ? "" : `This machine has ${size(memory)} of memory. `;
  return `${has}A larger model writes better, and slower`;
}

/** Returns the percentage from a line of `codespec models pull --progress`, or undefined for any other line. */
export function percentOf(line: string): number | undefined {
  const found = /^codespec: \S+: (\d{1,3}) %$/.exec(line.trim());
  return found ? Number(found[1]) : undefined;
}

/** Returns the last line of a failed pull. */
export function whyNot(lines: readonly string[]): string {
  return (lines.at(-1) ?? "no error output").replace(/^codespec: /, "").replace(/\.$/, "");
}

export function size(bytes: number): string {
  return bytes >= 9.95e9
    ? `${Math.round(bytes / 1e9)} GB`
    : bytes >= 1e9
      ? `${(bytes / 1e9).toFixed(1)} GB`
      : `${Math.round(bytes / 1e6)} MB`;
}

function detailOf({ here, download = 0, memory = 0, licence, gated }: Row): string {
  const fetch = here === "pulled" ? "is here" : `${size(download)} to fetch`;
  const parts = [fetch, `${size(memory)} of memory`, licence || "licence not stated"];
  return [...parts, ...(gated ? ["requires a login: `hf auth login`"] : [])].join(" · ");
}
