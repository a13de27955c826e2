/** The types of the daemon's own endpoint. */

export interface Counts {
  readonly drafted: number;
  readonly accepted: number;
}

/** One verify. Lengths are in target tokens. */
export interface Round {
  readonly choice: number;
  readonly source: string;
  readonly drafted: number;
  readonly accepted: number;
  readonly draft: string;
  readonly accepted_text: string;
  readonly target_text: string;
  readonly reason: string;
  readonly context: string;
}

/**
 * The cost of a completion, with times in milliseconds. `plain_ms` is the time that the target alone would have taken
 * for the same tokens as `decode_ms`, by the daemon's cost table; 0 without a table.
 */
export interface Stats extends Counts {
  readonly rounds: number;
  readonly committed: number;
  readonly by_source: Readonly<Record<string, Counts>>;
  readonly by_context: Readonly<Record<string, Counts>>;
  readonly prefill_ms: number;
  readonly first_piece_ms: number;
  readonly total_ms: number;
  readonly queue_ms: number;
  readonly decode_ms: number;
  readonly plain_ms: number;
  readonly ended: string;
}

export interface Done {
  readonly finish_reason: string;
  readonly cached_tokens: number;
  readonly new_tokens: number;
  readonly stats: Stats;
}

export type CompletionEvent =
  | { readonly name: "text"; readonly text: string }
  | { readonly name: "round"; readonly round: Round }
  | { readonly name: "done"; readonly done: Done };

export interface Ask {
  readonly document: string;
  readonly version: number;
  readonly language: string;
  readonly path: string;
  readonly prefix: string;
  readonly prefix_offset: number;
  readonly suffix: string;
  readonly trigger: string;
  readonly shape: string;
  readonly max_tokens: number;
  readonly speculate?: boolean;
}
