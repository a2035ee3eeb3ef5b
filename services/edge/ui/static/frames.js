// The frames of the native protocol that chats need (protos/outrider/v1/edge.proto): requests are
// written, events read. Each frame is its length, seven bits to a byte, and one message. Pure.

import { Writer, fields, join, number, text, varint, varints } from "./protobuf.js";

const MAX_FRAME_BYTES = 1 << 20;
const SPECULATIONS = { on: 1, off: 2, region_only: 3 };
const FINISH_REASONS = ["stop", "stop", "length", "cancelled", "deadline"];
const DEFAULT_TAGS = ["<think>", "</think>"];

/** Cuts a stream of bytes into the payloads of its frames. */
export class FrameReader {
  #held = new Uint8Array(0);

  /** The payloads that these bytes complete. Throws RangeError for a stream that is none. */
  read(bytes) {
    let held = this.#held.length ? join([this.#held, bytes]) : bytes;
    const payloads = [];
    for (;;) {
      const length = lengthOf(held);
      if (length === null || held.length < length.begin + length.size) break;
      payloads.push(held.subarray(length.begin, length.begin + length.size));
      held = held.subarray(length.begin + length.size);
    }
    this.#held = held;
    return payloads;
  }
}

function lengthOf(bytes) {
  let size = 0;
  for (let at = 0; at < Math.min(bytes.length, 5); at++) {
    size += (bytes[at] & 0x7f) * 2 ** (7 * at);
    if (size > MAX_FRAME_BYTES) throw new RangeError("the edge sent a frame that is too long");
    if (bytes[at] < 0x80) return { begin: at + 1, size };
  }
  if (bytes.length >= 5) throw new RangeError("the edge sent bytes that are no frame");
  return null;
}

function frame(field, message) {
  const payload = new Writer().message(field, message).finish();
  return join([varint(payload.length), payload]);
}

export const CANCEL = frame(2, new Writer());
export const DESCRIBE = frame(3, new Writer());

/** The first frame of a chat's stream. `request` as in transport.js, with all of its sampling;
 * `credential`: {key, clientSecret}; `run`: number of this run of it (nextRun); `progress`: what is
 * there of it already, or null. */
export function chatFrame(request, credential, run, progress = null) {
  const { thinking } = request;
  const variables =
    thinking === "on" || thinking === "off"
      ? JSON.stringify({ enable_thinking: thinking === "on" })
      : "";
  const chat = new Writer().text(1, request.model);
  for (const message of request.messages) chat.message(2, messageOf(message));
  chat
    .message(3, samplingOf(request.sampling))
    .bool(6, request.provisional)
    .uint(7, SPECULATIONS[request.speculation ?? "on"])
    .text(9, request.idempotencyKey)
    .message(10, resumeOf(run, progress ?? NOTHING))
    .message(13, credentialOf(credential))
    .text(18, variables)
    .uint(30, request.addedRttMs || undefined);
  return frame(1, chat);
}

function messageOf({ role, content, name, reasoning_content: reasoning }) {
  return new Writer().text(1, role).text(2, content).text(5, name).text(6, reasoning);
}

function samplingOf(it) {
  const message = new Writer()
    .double(1, it.temperature || undefined)
    .uint(2, Math.max(0, it.top_k ?? 0) || undefined)
    .double(3, it.top_p)
    .double(4, it.min_p)
    .double(5, it.repetition_penalty)
    .double(6, it.presence_penalty)
    .double(7, it.frequency_penalty)
    .fixed64(9, it.seed || undefined)
    .uint(10, it.max_tokens);
  for (const stop of [it.stop ?? []].flat()) message.text(11, stop);
  return message;
}

function credentialOf({ key, clientSecret }) {
  return new Writer().text(1, key).bytes(3, clientSecret);
}

const NOTHING = { ids: [], upto: 0 };

function resumeOf(run, { token, upto, ids, numChars, modelIdentity, templateDate }) {
  return new Writer()
    .text(1, token)
    .uint(2, upto || undefined)
    .uint(3, numChars || undefined)
    .packed(4, ids.length === upto ? ids : [])
    .bytes(5, modelIdentity ?? undefined)
    .text(6, templateDate)
    .uint(7, run);
}

const READERS = {
  1: ["accepted", readAccepted],
  2: ["provisional", readProvisional],
  3: ["provisional", (bytes) => ({ stability: 0, ...readFields(bytes, { 1: "eraseTo" }), text: "" })],
  4: ["committed", readCommitted],
  5: ["done", readDone],
  6: ["error", readError],
  7: ["description", () => ({})],
};

/** One event of a chat: {kind, ...}. Throws RangeError for bytes that are none. */
export function readEvent(payload) {
  for (const [field, value] of fields(payload)) {
    const known = READERS[field];
    if (known) return { kind: known[0], ...known[1](value) };
  }
  throw new RangeError("the edge sent a frame that has no place in a chat");
}

/** The fields of a message that are named: texts are decoded, floats and doubles read. */
function readFields(bytes, names, texts = {}, floats = {}) {
  const found = Object.fromEntries(Object.values(names).map((it) => [it, 0]));
  for (const it of Object.values(texts)) found[it] = "";
  for (const it of Object.values(floats)) found[it] = 0;
  for (const [field, value] of fields(bytes)) {
    if (field in names) found[names[field]] = value;
    else if (field in texts) found[texts[field]] = text(value);
    else if (field in floats) found[floats[field]] = number(value);
  }
  return found;
}

function readAccepted(bytes) {
  const texts = { 1: "id", 2: "token", 3: "model", 5: "edge", 7: "templateDate" };
  const found = readFields(bytes, { 4: "promptTokens" }, texts);
  for (const [field, value] of fields(bytes)) if (field === 6) found.format = readFormat(value);
  return found;
}

function readFormat(bytes) {
  const format = { reasons: false, beginsInReasoning: false, tags: [] };
  for (const [field, value] of fields(bytes)) {
    if (field === 2) format.reasons = value > 0;
    else if (field === 3) format.beginsInReasoning = value > 0;
    else if (field === 6) format.tags.push(text(value));
  }
  if (format.tags.length !== 2) format.tags = DEFAULT_TAGS;
  return format;
}

function readProvisional(bytes) {
  return readFields(bytes, { 2: "eraseTo" }, { 3: "text" }, { 4: "stability" });
}

function readCommitted(bytes) {
  const found = { text: "", ids: [], upto: 0, modelIdentity: null };
  for (const [field, value] of fields(bytes)) {
    if (field === 1) found.text = text(value);
    else if (field === 2) found.ids.push(...(typeof value === "number" ? [value] : varints(value)));
    else if (field === 3) found.upto = value;
    else if (field === 5) found.modelIdentity = value.slice();
  }
  return found;
}

function readDone(bytes) {
  const found = readFields(bytes, { 1: "finish", 9: "inexact", 10: "moves" }, { 6: "region", 7: "replica" });
  found.finishReason = FINISH_REASONS[found.finish] ?? "stop";
  found.inexact = found.inexact > 0;
  found.usage = readUsage(new Uint8Array(0));
  found.timings = readTimings(new Uint8Array(0));
  found.stats = readStats(new Uint8Array(0));
  found.firstText = undefined;
  for (const [field, value] of fields(bytes)) {
    if (field === 2) found.usage = readUsage(value);
    else if (field === 4) found.timings = readTimings(value);
    else if (field === 8) found.stats = readStats(value);
    else if (field === 16) found.firstText = readFirstText(value);
  }
  return found;
}

function readUsage(bytes) {
  return readFields(bytes, {
    1: "promptTokens",
    2: "cachedTokens",
    3: "completionTokens",
    5: "acceptedTokens",
    11: "acceptedEdgeTokens",
    12: "uncountedTokens",
  });
}

function readTimings(bytes) {
  return readFields(bytes, {}, {}, { 1: "queueMs", 3: "ttftMs", 4: "totalMs" });
}

function readStats(bytes) {
  return readFields(bytes, { 13: "aheadTokens" }, {}, { 10: "rttMs" });
}

/** Named as in the metrics of the HTTP API. */
function readFirstText(bytes) {
  const floats = { 1: "provisional_ms", 2: "staying_ms", 3: "committed_ms", 4: "region_ms" };
  return readFields(bytes, {}, {}, floats);
}

function readError(bytes) {
  return readFields(bytes, { 4: "retryAfterMs" }, { 1: "reason", 2: "message" });
}
