/**
 * One completion by the reference model as it was recorded (`record.mjs`), for whoever sees the page before its first
 * own one. Knows traces.
 */

import record from "./recorded.json";
import { Trace } from "./trace.ts";
import type { CompletionEvent } from "./wire.ts";

/** The models that wrote it. */
export const RECORDED_OF: string = record.of;

export function recorded(): Trace {
  const trace = new Trace(0, record.ask);
  for (const { at, event } of record.events) trace.add(event as CompletionEvent, at);
  return trace;
}
