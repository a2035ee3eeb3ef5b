/** A chat ended by an error; `message` says what to do. */
export class ChatError extends Error {
  constructor(message, { code = "", status = 0, retryAfterMs = 0 } = {}) {
    super(message);
    this.name = "ChatError";
    this.code = code;
    this.status = status;
    this.retryAfterMs = retryAfterMs;
  }
}
