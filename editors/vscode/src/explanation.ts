/** The explanation of the last completion, as a page. Pure. */

/** The result of codespec.explain: sentences to show unchanged, and the figures behind them. */
export interface Explained {
  readonly sentences?: readonly string[];
  readonly finish_reason?: string;
  readonly cached_tokens?: number;
  readonly new_tokens?: number;
  readonly stats?: Readonly<Record<string, unknown>>;
}

/** Returns the page: the sentences, then the figures in two columns. */
export function explanation({ sentences = [], stats = {}, ...figures }: Explained): string {
  const rows = Object.entries({ ...figures, ...stats }).filter(([, value]) => isShown(value));
  const width = Math.max(...rows.map(([name]) => name.length)) + 3;
  const table = rows.map(([name, value]) => `${name.replaceAll("_", " ").padEnd(width)}${shown(value)}`);
  return `${["The last completion", "", ...sentences, ...(rows.length ? ["", ...table] : [])].join("\n")}\n`;
}

/** Hides zeros and empty lists. */
function isShown(value: unknown): boolean {
  if (typeof value === "object") return value !== null && Object.keys(value).length > 0;
  return Boolean(value);
}

function shown(value: unknown): string {
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : value.toFixed(1);
  if (Array.isArray(value)) return value.map(shown).join("; ");
  if (typeof value !== "object" || value === null) return String(value);
  return Object.entries(value)
    .map(([name, inner]) =>
      isCounts(inner) ? `${name} ${inner.accepted} of ${inner.drafted}` : `${name} ${shown(inner)}`,
    )
    .join(", ");
}

function isCounts(value: unknown): value is { accepted: number; drafted: number } {
  return typeof value === "object" && value !== null && "accepted" in value && "drafted" in value;
}
