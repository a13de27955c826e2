/** What the daemon sends and takes, as its own endpoint has it. Values only. */

export interface Counts {
  readonly drafted: number;
  readonly accepted: number;
}

/** One verify. Texts are what they were in the document; lengths are target tokens. */
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
 * What a completion cost; times are milliseconds. `plain_ms` is what the target alone would have taken by the daemon's
 * cost table for what took `decode_ms`; 0 where there is no table.
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
