// Streams of the native protocol by fetch: a request's body is the client's frames, its answer the
// edge's. It works over every version of HTTP, through every proxy.

import { refusal } from "./chat-error.js";
import { CANCEL, FrameReader } from "./frames.js";
import { join } from "./protobuf.js";
import { Lost, STALL_MS, pause } from "./lost.js";

const TYPE = "application/vnd.outrider.frames";
const PATH = "outrider/v1/stream";
const TRANSPORTS = "ui/transport.json";
const PROBE_MS = 2500;

export class FetchWay {
  name = "fetch";
  #base;

  /** `base`: address of the edge, to which paths are relative. */
  constructor(base) {
    this.#base = base;
  }

  /** What the edge tells pages of its transports. Throws Lost. */
  async describe(patienceMs = PROBE_MS) {
    try {
      const answer = await fetch(new URL(TRANSPORTS, this.#base), {
        cache: "no-store",
        signal: AbortSignal.timeout(patienceMs),
      });
      if (answer.ok) return await answer.json();
    } catch {
      // As if it had answered with an error.
    }
    throw new Lost("the edge does not answer");
  }

  /** A stream that begins with this frame. Throws Lost and ChatError. */
  async begin(first) {
    const stopping = new AbortController();
    const answer = await this.#answered(this.#post(first, { signal: stopping.signal }), stopping);
    if (!answer.ok) {
      const error = await refusal(answer);
      throw error.status >= 502 ? new Lost(error.message) : error;
    }
    return new FetchStream(this, answer.body.getReader(), stopping);
  }

  /** Cancel a chat, which `resume` names. */
  cancel(resume) {
    this.#post(join([resume, CANCEL]), { keepalive: true }).catch(() => {});
  }

  /** What a request is answered; while nothing comes, whether the edge is there is tried. */
  async #answered(posted, stopping) {
    try {
      for (;;) {
        const stalled = pause(STALL_MS);
        const answer = await Promise.race([posted, stalled]);
        stalled.cancel();
        if (answer) return answer;
        await this.describe();
      }
    } catch {
      stopping.abort();
      posted.catch(() => {});
      throw new Lost("the edge does not answer");
    }
  }

  #post(body, options) {
    const headers = { "content-type": TYPE };
    return fetch(new URL(PATH, this.#base), { method: "POST", headers, body, ...options });
  }
}

class FetchStream {
  #way;
  #reader;
  #stopping;
  #frames = new FrameReader();
  #waiting = [];

  constructor(way, reader, stopping) {
    this.#way = way;
    this.#reader = reader;
    this.#stopping = stopping;
  }

  /** The next frame's payload. Throws Lost. */
  async read() {
    while (!this.#waiting.length) {
      let piece;
      try {
        piece = await this.#reader.read();
      } catch {
        throw new Lost("the connection was lost");
      }
      if (piece.done) throw new Lost("the connection ended");
      this.#waiting.push(...this.#frames.read(piece.value));
    }
    return this.#waiting.shift();
  }

  /** Throws Lost if nothing gets through. */
  async probe() {
    await this.#way.describe();
  }

  cancel(resume) {
    this.close();
    this.#way.cancel(resume);
  }

  close() {
    this.#stopping.abort();
  }
}
