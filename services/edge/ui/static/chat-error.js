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

/** Why an answer with a status of failure is one. */
export async function refusal(answer) {
  let told = {};
  try {
    told = (await answer.json()).error ?? {};
  } catch {
    // A proxy's own answer.
  }
  const message = told.message ?? `The edge answered with status ${answer.status}.`;
  const { headers, status } = answer;
  const retryAfterMs = Number(headers.get("retry-after-ms")) || 1000 * Number(headers.get("retry-after")) || 0;
  return new ChatError(message, { code: told.code ?? "", status, retryAfterMs });
}
