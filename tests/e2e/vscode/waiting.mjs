// Waiting for what is to happen, with a limit. Nothing here waits for a time to pass.
import { createServer } from "node:net";

const LIMIT = 60_000; // milliseconds; shared cores are slow by chance
const LOOK_EVERY = 20;

/** What `look` returns, as soon as that is something; it may throw while things are not there yet. */
export async function until(what, look, limit = LIMIT) {
  const end = Date.now() + limit;
  for (let last = ""; ;) {
    try {
      const found = await look();
      if (found) return found;
    } catch (error) {
      last = `: ${error.message}`;
    }
    if (Date.now() > end) throw new Error(`not within ${limit / 1000} s: ${what}${last}`);
    await pause(LOOK_EVERY);
  }
}

export function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

/** A port that nobody listens on. */
export function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}
