/**
 * A recorded completion by the reference model (`record.mjs`), shown until the page has requested one.
 */

import record from "./recorded.json";
import { Trace } from "./trace.ts";
import type { CompletionEvent } from "./wire.ts";

/** The models of the recording. */
export const RECORDED_OF: string = record.of;

export function recorded(): Trace {
  const trace = new Trace(0, record.ask);
  for (const { at, event } of record.events) trace.add(event as CompletionEvent, at);
  return trace;
}
