// How the page talks to its edge: by the native protocol, in a WebTransport session where that works
// and else by fetch; or, where a request needs it, by the edge's HTTP API. All give the same events.
//
// A transport has a `name` and `chat(request, {signal})`, an async iterable of events. A request:
// {model?, messages, sampling, speculation?, provisional, thinking?, tools?, idempotencyKey}.
// Aborting the signal stops the chat at the edge; the last event is then `done` with the reason
// "cancelled". Errors are thrown as ChatError. Every event has `at`, performance.now() when it came:
//
//   opened       id, model, edge?, seed?, transport?, why?
//   provisional  eraseTo, text, stability: keep so many code points of the provisional text, append
//   committed    text (final), accepted?: [[begin, end]...] of its code points, sealed?: code points
//   reasoning    text (final)
//   tool         index, id?, name?, arguments
//   interrupted  why: the connection is lost and tried again
//   resumed      afterMs, transport?
//   moved        region?, replica?: another replica continues
//   usage        promptTokens, completionTokens, cachedTokens
//   done         finishReason, region?, replica?, seed?, rttMs?, queueMs?, ttftMs?, totalMs?, moves?,
//                tokens?: {edge, region, none, unknown}, inexact?

import { fetchTransport } from "./fetch-transport.js";
import { isNative, openNative } from "./native-transport.js";

export { ChatError } from "./chat-error.js";

/** The best transport that works here. `name` is what carries chats now, "webtransport" or "fetch";
 * `why` says why it is not WebTransport. */
export async function connect() {
  const native = await openNative();
  return {
    get name() {
      return native.name;
    },
    get why() {
      return native.why;
    },
    chat: (request, options) => (isNative(request) ? native : fetchTransport).chat(request, options),
  };
}
