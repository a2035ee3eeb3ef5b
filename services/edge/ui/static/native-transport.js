// Chats by the native protocol: in a WebTransport session where that works, else by fetch, with the
// same frames and so the same events. A chat that is cut off is resumed after the last token that
// came, whichever transport and edge is reached next.

import { ChatError } from "./chat-error.js";
import { clientSecret, headers, key } from "./credentials.js";
import { FetchWay } from "./frame-fetch.js";
import { chatFrame, readEvent } from "./frames.js";
import { Attempts, Lost, STALL_MS, pause } from "./lost.js";
import { ReasoningSplitter } from "./reasoning.js";
import { SessionWay } from "./webtransport.js";

const UNAVAILABLE = new Set(["UNAVAILABLE", "VOCABULARY_UNAVAILABLE", "DRAINING", "NO_REPLICA", "REPLICA_LOST"]);
const FULL = new Set(["DUPLICATE_SESSION", "OVERLOADED"]);
const MODELS_MS = 10_000;
const OWN_KEPT_MS = 60_000;
/** So long a model's own sampling is taken as known: no chat waits for it twice in a row. */
const DEFAULT_MAX_TOKENS = 2048;
const POSITION = "native";
/** How the id of an event begins after which a chat continues when the page was loaded again. */

/** Whether a request can be made by the native protocol: the edge reads tool calls, and knows what
 * was typed ahead, of requests of its HTTP API alone. */
export function isNative(request) {
  const { tools, messages, typingId, lastEventId } = request;
  const hasCalls = messages.some((it) => it.tool_calls || it.role === "tool");
  return !(tools?.length || hasCalls || typingId || (lastEventId && !lastEventId.startsWith(POSITION)));
}

/** A transport by the native protocol. `edges`: addresses of edges, the page's own by default; they
 * are tried in turn. `name` is what carries chats now, `why` why it is not WebTransport. */
export async function openNative({ edges = [document.baseURI] } = {}) {
  const ways = new Ways(edges);
  if (!(await isReady(ways.session))) ways.name = "fetch";
  return {
    get name() {
      return ways.name;
    },
    get why() {
      return ways.session.why;
    },
    chat: (request, { signal }) => chat(request, ways, signal),
  };
}

/** The ways to edges. */
class Ways {
  name = "webtransport";
  #places;
  #at = 0;

  constructor(edges) {
    this.#places = edges.map((base) => {
      const fetching = new FetchWay(base);
      return { base, fetching, session: new SessionWay(() => fetching.describe()) };
    });
  }

  /** Addresses of the edges, the one to be tried next first. */
  get bases() {
    return [...this.#places.slice(this.#at), ...this.#places.slice(0, this.#at)].map((it) => it.base);
  }

  get session() {
    return this.#places[this.#at].session;
  }

  /** A stream that begins with this frame. Throws Lost, and then the next edge is tried next. */
  async begin(frame) {
    const { session, fetching } = this.#places[this.#at];
    let isByFetch = false;
    try {
      if (!session.isOut && (await isReady(session))) {
        const stream = await session.begin(frame);
        this.name = session.name;
        return stream;
      }
      isByFetch = true;
      const stream = await fetching.begin(frame);
      this.name = fetching.name;
      return stream;
    } catch (error) {
      if (error instanceof Lost) {
        // The edge itself is away: nothing is known of UDP.
        if (isByFetch) session.retry();
        this.#at = (this.#at + 1) % this.#places.length;
      }
      throw error;
    }
  }
}

async function isReady(session) {
  try {
    await session.ready();
    return true;
  } catch {
    return false;
  }
}

/** What of a reply has come. */
class Progress {
  token = "";
  /** Committed tokens that came, and their ids, unless an earlier page had some of them. */
  upto = 0;
  ids = [];
  numChars = 0;
  modelIdentity = null;
  templateDate = "";
  id = "";
  model = "";
  /** Provisional text that stands, as the edge counts it: an array of code points. */
  front = [];
  splitter = null;
  #state = undefined;

  /** After the event of this id: of a page that was loaded again. */
  static at(eventId) {
    const progress = new Progress();
    if (eventId) {
      const [, token, upto, numChars, state, date] = eventId.split(" ");
      Object.assign(progress, { token, upto: Number(upto), numChars: Number(numChars), templateDate: date });
      progress.#state = state;
    }
    return progress;
  }

  get hasBegun() {
    return this.token !== "";
  }

  /** Names this place; undefined where some text was counted but not told yet. */
  get eventId() {
    if (this.splitter.holds) return undefined;
    return [POSITION, this.token, this.upto, this.numChars, this.splitter.state, this.templateDate].join(" ");
  }

  accepted({ id, token, model, templateDate, format }) {
    Object.assign(this, { id, token, model, templateDate });
    this.splitter ??= new ReasoningSplitter(format, this.#state);
  }
}

async function* chat(request, ways, signal) {
  const credential = { key: key(), clientSecret: bytesOf(clientSecret()) };
  const progress = Progress.at(request.lastEventId);
  const attempts = new Attempts();
  const stop = abortedBy(signal);
  let asked = null;
  let run = 0;
  let stream = null;
  let isOpened = false;
  let waitMs = 0;
  for (;;) {
    try {
      if (waitMs) await Promise.race([pause(waitMs), stop]);
      asked ??= await Promise.race([completed(request, ways.bases), stop]);
      run = nextRun(run);
      stream = await unlessStopped(ways.begin(frameOf(asked, credential, run, progress)), stop);
      for await (const event of read(stream, progress, stop)) {
        if (event.type === "opened") {
          Object.assign(event, { seed: asked.sampling.seed, transport: ways.name, why: ways.session.why });
          if (isOpened) continue;
          isOpened = true;
        } else if (event.type === "done") {
          Object.assign(event, { seed: asked.sampling.seed, transport: ways.name, why: ways.session.why });
        } else if (attempts.lostAt && event.type !== "provisional") {
          yield { type: "resumed", at: event.at, afterMs: event.at - attempts.lostAt, transport: ways.name };
          attempts.worked();
        }
        yield event;
      }
      return;
    } catch (error) {
      if (error === STOPPED) {
        if (stream && progress.hasBegun) stream.cancel(frameOf(asked, credential, run, progress));
        else stream?.close();
        yield { type: "done", at: performance.now(), finishReason: "cancelled" };
        return;
      }
      stream?.close();
      if (!isRetried(error, attempts, progress)) throw error;
      waitMs = attempts.failed(error);
      if (progress.front.length) {
        progress.front = [];
        yield { type: "provisional", at: attempts.lostAt, eraseTo: 0, text: "", stability: 0 };
      }
      if (attempts.isNew) yield { type: "interrupted", at: attempts.lostAt, why: error.message };
    }
  }
}

/** The stream that is begun; one that comes too late is closed. */
async function unlessStopped(beginning, stop) {
  try {
    return await Promise.race([beginning, stop]);
  } catch (error) {
    beginning.then((late) => late.close(), () => {});
    throw error;
  }
}

/** Whether an error passes: the same rules as outrider/client/recovery.py. */
function isRetried(error, attempts, progress) {
  if (error instanceof Lost) return true;
  if (attempts.lostAt) return UNAVAILABLE.has(error.code) || FULL.has(error.code);
  return progress.upto ? UNAVAILABLE.has(error.code) : error.code === "DRAINING";
}

/** The events of one stream; returns after the last one. Throws Lost, ChatError and STOPPED. */
async function* read(stream, progress, stop) {
  for (;;) {
    const event = readEvent(await next(stream, stop));
    const at = performance.now();
    switch (event.kind) {
      case "accepted":
        progress.accepted(event);
        yield { type: "opened", at, id: event.id, model: event.model, edge: event.edge };
        break;
      case "provisional":
        yield* provisional(event, progress, at);
        break;
      case "committed":
        yield* committed(event, progress, at);
        break;
      case "done":
        yield* texts(progress.splitter.end(), at);
        yield* ending(event, at);
        stream.close();
        return;
      case "error":
        throw new ChatError(event.message, { code: event.reason, retryAfterMs: event.retryAfterMs });
      default:
        throw new RangeError("the edge sent a frame that has no place in a chat");
    }
  }
}

function* provisional({ eraseTo, text, stability }, progress, at) {
  progress.front = [...progress.front.slice(0, eraseTo), ...text];
  // What stands behind reasoning is shown once the answer has begun.
  if (progress.splitter.isAnswering) yield { type: "provisional", at, eraseTo, text, stability };
}

function* committed({ text, ids, upto, modelIdentity }, progress, at) {
  const points = [...text];
  progress.ids.push(...ids);
  progress.upto = upto;
  progress.numChars += points.length;
  progress.modelIdentity = modelIdentity ?? progress.modelIdentity;
  progress.front = progress.front.slice(points.length);
  const wasAnswering = progress.splitter.isAnswering;
  const made = [...texts(progress.splitter.read(text), at)];
  if (made.length) made.at(-1).eventId = progress.eventId;
  yield* made;
  if (!wasAnswering && progress.splitter.isAnswering && progress.front.length) {
    yield { type: "provisional", at, eraseTo: 0, text: progress.front.join(""), stability: 0 };
  }
}

function* texts({ reasoning, answer }, at) {
  if (reasoning) yield { type: "reasoning", at, text: reasoning };
  if (answer) yield { type: "committed", at, text: answer };
}

function* ending({ usage, timings, stats, ...done }, at) {
  const { promptTokens, completionTokens, cachedTokens, acceptedTokens, acceptedEdgeTokens, uncountedTokens } = usage;
  yield { type: "usage", at, promptTokens, completionTokens, cachedTokens };
  const tokens = {
    edge: acceptedEdgeTokens,
    region: acceptedTokens - acceptedEdgeTokens,
    none: completionTokens - uncountedTokens - acceptedTokens,
    unknown: uncountedTokens,
  };
  const { finishReason, region, replica, moves, inexact, firstText } = done;
  const { queueMs, ttftMs, totalMs } = timings;
  const { rttMs, aheadTokens } = stats;
  yield {
    ...{ type: "done", at, finishReason, region, replica, moves, inexact },
    ...{ queueMs, ttftMs, totalMs, rttMs, aheadTokens, tokens, firstText },
  };
}

/** The next frame; while none comes, whether the edge is reached is tried. */
async function next(stream, stop) {
  const reading = stream.read();
  reading.catch(() => {});
  for (;;) {
    const stalled = pause(STALL_MS);
    const payload = await Promise.race([reading, stalled, stop]);
    stalled.cancel();
    if (payload) return payload;
    await Promise.race([stream.probe(), reading, stop]);
  }
}

function frameOf(asked, credential, run, progress) {
  return chatFrame(asked, credential, run, progress.hasBegun ? progress : null);
}

/** The number of the run after `last`: the same rule as outrider/session/runs.py. */
function nextRun(last) {
  return Math.max(last + 1, Math.floor(Date.now() / 1000));
}

/** The seed of a request that names none: the same when it is sent again. */
function seedOf(idempotencyKey) {
  return parseInt(idempotencyKey.replaceAll("-", "").slice(0, 13), 16) || 1;
}

/** The request with the sampling that it does not say: what the model's own settings suggest. */
async function completed(request, bases) {
  const sampling = { ...(await modelsOwn(bases, request.model)), ...request.sampling };
  sampling.max_tokens ??= DEFAULT_MAX_TOKENS;
  sampling.temperature ??= 1;
  sampling.seed ??= seedOf(request.idempotencyKey);
  return { ...request, sampling };
}

let lastOwn = { model: null, at: -Infinity, sampling: {} };

async function modelsOwn(bases, model) {
  if (lastOwn.model === model && performance.now() - lastOwn.at < OWN_KEPT_MS) return lastOwn.sampling;
  for (const base of bases) {
    try {
      const signal = AbortSignal.timeout(MODELS_MS);
      const answer = await fetch(new URL("v1/models", base), { headers: headers(), signal });
      const listed = (await answer.json()).data;
      const found = listed.find((it) => it.id === model) ?? listed[0];
      const sampling = { ...found.default_sampling_params, max_tokens: found.default_max_tokens };
      lastOwn = { model, at: performance.now(), sampling };
      return sampling;
    } catch {
      // The next one may know.
    }
  }
  return {};
}

const STOPPED = new Error("stopped");

/** A promise that fails with STOPPED once the user stops the chat. */
function abortedBy(signal) {
  const stop = new Promise((_, reject) => {
    if (signal.aborted) reject(STOPPED);
    signal.addEventListener("abort", () => reject(STOPPED), { once: true });
  });
  stop.catch(() => {});
  return stop;
}

function bytesOf(hex) {
  return new Uint8Array(hex.match(/../g).map((it) => parseInt(it, 16)));
}
