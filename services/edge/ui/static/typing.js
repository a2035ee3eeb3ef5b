// What is typed, told to the edge before Enter. Only while the user has agreed: as long as `agree`
// was not called, nothing is sent.

import { headers } from "./credentials.js";

const PATH = "v1/chat/typing";
const THROTTLE_MS = 60;
const DEFAULT_PAUSE_MS = 5000;

export class Typing {
  #agreed = false;
  #message = null;
  #inFlight = false;
  #next = null;
  #pausedUntil = 0;
  #timer = 0;

  /** `requestOf()`: the body that the chat will have, without the message; `refused()`: the edge
   * does not answer ahead. */
  constructor(requestOf, refused) {
    this.requestOf = requestOf;
    this.refused = refused;
  }

  agree(agreed) {
    if (this.#agreed && !agreed) this.withdraw();
    this.#agreed = agreed;
  }

  /** The text in the message field is this now. */
  typed(text) {
    if (!this.#agreed || (!text && !this.#message)) return;
    this.#message ??= { id: freshId(), sequence: 0, known: false, seed: null };
    this.#next = text;
    this.#soon();
  }

  /** The message is sent: its id and the seed of what was begun, null without. */
  sent() {
    const message = this.#message;
    this.#forget();
    return message && message.known ? { id: message.id, seed: message.seed } : null;
  }

  /** What was typed will not be sent. */
  withdraw() {
    const message = this.#message;
    if (message?.sequence) this.#post(message, "").catch(() => {});
    this.#forget();
  }

  #forget() {
    this.#message = null;
    this.#next = null;
    clearTimeout(this.#timer);
    this.#timer = 0;
  }

  #soon() {
    if (this.#timer || this.#inFlight) return;
    const wait = Math.max(THROTTLE_MS, this.#pausedUntil - performance.now());
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.#tell();
    }, wait);
  }

  async #tell() {
    const message = this.#message;
    const text = this.#next;
    if (!this.#agreed || !message || text === null) return;
    this.#next = null;
    this.#inFlight = true;
    try {
      await this.#post(message, text);
    } catch {
      // Nothing was begun: the chat is sent as ever.
    }
    this.#inFlight = false;
    if (this.#next !== null) this.#soon();
  }

  async #post(message, text) {
    message.sequence += 1;
    const body = { id: message.id, sequence: message.sequence, text };
    if (!message.known) body.request = this.requestOf();
    const answer = await fetch(PATH, {
      method: "POST",
      headers: { "content-type": "application/json", ...headers() },
      body: JSON.stringify(body),
      keepalive: text === "",
    });
    if (answer.ok) {
      message.known = true;
      message.seed = (await answer.json()).seed ?? null;
    } else if (answer.status === 404) {
      message.known = false;
      // An edge without this route answers so as well.
      const told = await answer.json().catch(() => ({}));
      if (told.error?.code !== "unknown_chat") this.#refuse();
      else if (this.#message === message) this.#next ??= text;
    } else if (answer.status === 429) {
      const stated = Number(answer.headers.get("retry-after")) * 1000;
      this.#pausedUntil = performance.now() + (stated || DEFAULT_PAUSE_MS);
    } else if (answer.status === 403) this.#refuse();
  }

  #refuse() {
    this.#agreed = false;
    this.#forget();
    this.refused();
  }
}

function freshId() {
  const bytes = crypto.getRandomValues(new Uint8Array(18));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_");
}
