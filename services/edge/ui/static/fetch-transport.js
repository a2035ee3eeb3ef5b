// Chats by POST v1/chat/completions, streamed. A lost connection is tried again with the same
// Idempotency-Key and the id of the last event, so nothing is lost or repeated.

import { ChatError, refusal } from "./chat-error.js";
import { headers } from "./credentials.js";
import { Attempts, Lost, pause } from "./lost.js";
import { EventReader } from "./sse.js";

const PATH = "v1/chat/completions";
const MAX_STATED_MS = 3000;
/** What an edge asks to wait is waited for so long at most. */
const RETRIED = new Set([502, 503, 504]);

export const fetchTransport = { name: "fetch", chat };

/** The events of one reply; see transport.js. */
export async function* chat(request, { signal }) {
  const body = JSON.stringify(bodyOf(request));
  const reply = { lastId: request.lastEventId ?? "", opened: false, finish: null, usage: null, at: 0 };
  const attempts = new Attempts();
  for (;;) {
    try {
      for await (const event of attempt(request.idempotencyKey, body, reply, signal)) {
        if (attempts.lostAt) yield { type: "resumed", at: event.at, afterMs: event.at - attempts.lostAt };
        attempts.worked();
        yield event;
      }
      yield ending(reply);
      return;
    } catch (error) {
      if (signal.aborted) {
        cancel(request.idempotencyKey);
        yield { type: "done", at: performance.now(), finishReason: "cancelled" };
        return;
      }
      if (!(error instanceof Lost)) throw error;
      const waitMs = attempts.failed(error);
      if (attempts.isNew) yield { type: "interrupted", at: attempts.lostAt, why: error.message };
      await aborted(signal, pause(waitMs));
    }
  }
}

/** Once the promise is kept, or the signal given. */
function aborted(signal, promise) {
  return Promise.race([promise, new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }))]);
}

/** The body of POST v1/chat/completions for a request. */
export function bodyOf(request) {
  const { model, messages, sampling, speculation, provisional, thinking, tools, typingId } = request;
  const body = {
    messages,
    ...sampling,
    stream: true,
    stream_options: { include_usage: true, provisional },
    return_metrics: true,
  };
  if (model) body.model = model;
  if (speculation && speculation !== "on") body.speculation = speculation;
  if (thinking === "on" || thinking === "off") body.enable_thinking = thinking === "on";
  if (tools?.length) body.tools = tools;
  if (typingId) body.typing_id = typingId;
  if (request.addedRttMs) body.added_rtt_ms = request.addedRttMs;
  return body;
}

async function* attempt(idempotencyKey, body, reply, signal) {
  const sent = {
    "content-type": "application/json",
    "idempotency-key": idempotencyKey,
    ...headers(),
  };
  if (reply.lastId) sent["last-event-id"] = reply.lastId;
  let answer;
  try {
    answer = await fetch(PATH, { method: "POST", headers: sent, body, signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Lost("the edge does not answer");
  }
  if (!answer.ok) await refuse(answer, reply.opened);
  const reader = new EventReader();
  const bytes = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const piece = await readPiece(bytes, signal);
      if (piece.done) throw new Lost("the connection ended");
      const at = performance.now();
      for (const { name, data, id } of reader.read(piece.value)) {
        if (data === "[DONE]") return;
        const made = [...eventsOf(name, JSON.parse(data), reply, at)];
        // Whoever has taken all of an event may continue after it.
        if (id && made.length) made.at(-1).eventId = id;
        yield* made;
        if (id) reply.lastId = id;
      }
    }
  } finally {
    bytes.cancel().catch(() => {});
  }
}

async function readPiece(bytes, signal) {
  try {
    return await bytes.read();
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Lost("the connection was lost");
  }
}

async function refuse(answer, hadBegun) {
  const error = await refusal(answer);
  if (RETRIED.has(error.status) && (hadBegun || error.status !== 503)) {
    throw new Lost(error.message, { retryAfterMs: Math.min(error.retryAfterMs, MAX_STATED_MS) });
  }
  throw error;
}

/** Our events for one of the stream. */
export function* eventsOf(name, data, reply, at) {
  if (data.error) {
    throw new ChatError(data.error.message, { code: data.error.code ?? "" });
  }
  if (name === "outrider.provisional") {
    yield { type: "provisional", at, eraseTo: data.erase_to, text: data.text, stability: data.stability };
    return;
  }
  if (name === "outrider.moved") {
    yield { type: "moved", at, region: data.region, replica: data.replica };
    return;
  }
  const choice = data.choices?.[0];
  const delta = choice?.delta ?? {};
  if (!reply.opened) {
    reply.opened = true;
    yield { type: "opened", at, id: data.id, model: data.model, seed: choice?.outrider?.seed };
  }
  if (delta.reasoning_content) yield { type: "reasoning", at, text: delta.reasoning_content };
  if (delta.content) yield { type: "committed", at, text: delta.content };
  for (const call of delta.tool_calls ?? []) {
    yield {
      type: "tool",
      at,
      index: call.index,
      id: call.id,
      name: call.function?.name,
      arguments: call.function?.arguments ?? "",
    };
  }
  if (choice?.finish_reason) reply.finish = { reason: choice.finish_reason, details: choice.outrider };
  if (data.metrics) reply.metrics = data.metrics;
  if (data.usage) {
    yield {
      type: "usage",
      at,
      promptTokens: data.usage.prompt_tokens,
      completionTokens: data.usage.completion_tokens,
      cachedTokens: data.usage.prompt_tokens_details?.cached_tokens ?? 0,
    };
  }
}

function ending({ finish, metrics }) {
  const details = finish?.details ?? {};
  return {
    type: "done",
    at: performance.now(),
    finishReason: details.finish_reason ?? finish?.reason ?? "stop",
    region: details.region,
    replica: details.replica,
    seed: details.seed,
    inexact: details.inexact ?? false,
    ttftMs: details.ttft_ms,
    totalMs: details.total_ms,
    queueMs: metrics?.queue_time_ms,
    rttMs: metrics?.rtt_ms,
    moves: metrics?.moves ?? 0,
    aheadTokens: metrics?.ahead_tokens ?? 0,
    tokens: metrics?.tokens,
    firstText: metrics?.first_text,
  };
}

/** The edge keeps a reply for a client that may come back; this one does not. */
function cancel(idempotencyKey) {
  const sent = { "idempotency-key": idempotencyKey, ...headers() };
  fetch(PATH, { method: "DELETE", headers: sent, keepalive: true }).catch(() => {});
}
