// Connections that are lost, and when what they carried is tried again.

import { ChatError } from "./chat-error.js";

/** After so long without anything it is tried whether the edge is still reached. */
export const STALL_MS = 2000;
const FIRST_RETRY_MS = 200;
const MAX_RETRY_MS = 3000;
const GIVE_UP_MS = 120_000;

/** The connection is lost, or the edge or its regions have no room just now: to be tried again. */
export class Lost extends Error {
  constructor(message, { retryAfterMs = 0 } = {}) {
    super(message);
    this.retryAfterMs = retryAfterMs;
  }
}

/** Pauses that double while one chat is tried again and again. */
export class Attempts {
  /** When it was cut off, by performance.now(); 0: it is not. */
  lostAt = 0;
  /** Whether the last failure is the first one of an interruption. */
  isNew = false;
  #delay = FIRST_RETRY_MS;

  /** Milliseconds until the next try. Throws the error once it is not worth one. */
  failed(error) {
    const now = performance.now();
    this.isNew = this.lostAt === 0;
    if (this.isNew) this.lostAt = now;
    const waitMs = Math.max(this.#delay * (0.5 + Math.random() / 2), error.retryAfterMs ?? 0);
    this.#delay = Math.min(2 * this.#delay, MAX_RETRY_MS);
    if (now + waitMs < this.lostAt + GIVE_UP_MS) return waitMs;
    if (!(error instanceof Lost)) throw error;
    throw new ChatError("The edge cannot be reached. Retry once it is back.", { code: "LOST" });
  }

  worked() {
    this.lostAt = 0;
    this.#delay = FIRST_RETRY_MS;
  }
}

/** A promise that is kept after so long, unless its `cancel` is called. */
export function pause(ms) {
  let timer;
  const passed = new Promise((resolve) => (timer = setTimeout(resolve, ms)));
  passed.cancel = () => clearTimeout(timer);
  return passed;
}
