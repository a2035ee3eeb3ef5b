/** The connection is lost, or the edge or its regions have no room just now: to be tried again. */
export class Lost extends Error {
  constructor(message, { retryAfterMs = 0 } = {}) {
    super(message);
    this.retryAfterMs = retryAfterMs;
  }
}
