// Streams of the native protocol in a WebTransport session, which is opened when it is needed. The
// edge tells where, and by which hashes its certificate is to be taken (ui/transport.json).

import { DESCRIBE, FrameReader } from "./frames.js";
import { Lost } from "./lost.js";

const CONNECT_MS = 3000;
const PROBE_MS = 2500;
const OUT_MS = 30_000;
const DONE = 0;
const COMING_BACK = 0x105;
/** Error codes of the native protocol (outrider/client/protocol.py). */

export class SessionWay {
  name = "webtransport";
  /** Why the last attempt failed, for people; empty: it did not. */
  why = "";
  #describe;
  #opening = null;
  #session = null;
  #outUntil = 0;

  /** `describe`: gets ui/transport.json. */
  constructor(describe) {
    this.#describe = describe;
    globalThis.addEventListener?.("online", () => this.retry());
    globalThis.addEventListener?.("pagehide", () => this.leave());
  }

  /** Whether it is not to be tried now, since it failed a moment ago or cannot work here. */
  get isOut() {
    return performance.now() < this.#outUntil;
  }

  /** Whatever it failed for may be over: try it next time. */
  retry() {
    this.#outUntil = 0;
  }

  /** Returns once a session is open. Throws Lost, and `why` says the reason. */
  async ready() {
    if (this.#session) return this.#session;
    this.#opening ??= this.#open().finally(() => (this.#opening = null));
    return await this.#opening;
  }

  /** A stream that begins with this frame. Throws Lost. */
  async begin(first) {
    const session = await this.ready();
    try {
      const stream = await within(session.createBidirectionalStream(), CONNECT_MS);
      const writer = stream.writable.getWriter();
      await writer.write(first);
      // Firefox loses the end of a stream whose other direction the edge has to stop.
      writer.close().catch(() => {});
      writer.closed.catch(() => {});
      return new SessionStream(this, stream.readable.getReader());
    } catch (error) {
      this.drop("the session was lost");
      throw new Lost(`the session was lost (${error.message})`);
    }
  }

  /** Nothing gets through: the session is no longer used, and no other one tried for a while. */
  drop(why) {
    this.why = why;
    this.#outUntil = performance.now() + OUT_MS;
    this.leave();
  }

  /** End the session; the edge keeps its chats for a while. */
  leave() {
    const session = this.#session;
    this.#session = null;
    try {
      session?.close({ closeCode: COMING_BACK, reason: "" });
    } catch {
      // It was not open.
    }
  }

  async #open() {
    try {
      return await this.#connect();
    } catch (error) {
      this.why = error.message;
      this.#outUntil = performance.now() + OUT_MS;
      throw new Lost(error.message);
    }
  }

  async #connect() {
    if (!globalThis.isSecureContext) {
      throw new Lost("browsers open sessions only from https or localhost");
    }
    if (!globalThis.WebTransport) throw new Lost("this browser has no WebTransport");
    const told = await this.#describe();
    const place = told.webtransport;
    if (!place) throw new Lost("this edge offers no WebTransport");
    const hashes = place.certificate_hashes;
    const session = new WebTransport(place.url, {
      congestionControl: "low-latency",
      ...(hashes.length && { serverCertificateHashes: hashes.map(digestOf) }),
    });
    session.closed.then(
      () => this.#ended(session),
      () => this.#ended(session),
    );
    try {
      await within(session.ready, CONNECT_MS);
    } catch (error) {
      session.closed.catch(() => {});
      try {
        session.close();
      } catch {
        // It never opened.
      }
      throw new Lost(reasonOf(error, hashes, told.now, new URL(place.url).host));
    }
    this.why = "";
    this.#session = session;
    return session;
  }

  #ended(session) {
    if (this.#session === session) this.#session = null;
  }
}

class SessionStream {
  #way;
  #reader;
  #frames = new FrameReader();
  #waiting = [];
  #numPieces = 0;

  constructor(way, reader) {
    this.#way = way;
    this.#reader = reader;
    reader.closed.catch(() => {});
  }

  /** The next frame's payload. Throws Lost. */
  async read() {
    while (!this.#waiting.length) {
      let piece;
      try {
        piece = await this.#reader.read();
      } catch (error) {
        throw new Lost(`the session was lost (${error.message})`);
      }
      if (piece.done) throw new Lost("the stream ended before the reply did");
      this.#numPieces += 1;
      this.#waiting.push(...this.#frames.read(piece.value));
    }
    return this.#waiting.shift();
  }

  /** Throws Lost if nothing gets through. */
  async probe() {
    const numPieces = this.#numPieces;
    try {
      const question = await this.#way.begin(DESCRIBE);
      await within(question.read(), PROBE_MS);
      question.close();
    } catch {
      if (this.#numPieces > numPieces) return; // the edge was busy, and answered the chat first
      this.#way.drop("UDP no longer gets through");
      throw new Lost("nothing gets through any more");
    }
  }

  /** A chat that its client reads no more is cancelled. */
  cancel() {
    this.close();
  }

  close() {
    this.#reader.cancel(DONE).catch(() => {});
  }
}

function digestOf({ algorithm, value }) {
  const bytes = value.match(/../g).map((it) => parseInt(it, 16));
  return { algorithm, value: new Uint8Array(bytes) };
}

/** Browsers do not say why a session did not open; what is known tells more. */
function reasonOf(error, hashes, edgeTime, host) {
  const end = hashes.length ? Date.parse(hashes[0].not_after) : Infinity;
  if (end < Date.parse(edgeTime)) return `the edge's certificate expired at ${hashes[0].not_after}`;
  if (end < Date.now()) return "by this computer's clock the edge's certificate has expired";
  if (error instanceof Late) return `no answer over UDP from ${host}`;
  return `the session did not open (${error.message})`;
}

class Late extends Error {}

/** The promise's result, if it comes in time. Throws Late. */
async function within(promise, ms) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Late("no answer")), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
