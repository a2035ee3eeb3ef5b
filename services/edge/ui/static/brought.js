// What an edge brought to one reply, in milliseconds, from the times of its events. Pure.

/** `front`: the reply's Front once it has ended; `sentAt`: when Enter was pressed; `done`: the last
 * event, `ahead`: tokens that were ready at Enter. Times are by the browser's clock. */
export function broughtBy(front, { sentAt, endedAt, done, usage }) {
  done ??= {};
  usage ??= {};
  const since = (at) => (at === null || at === undefined ? null : Math.max(0, at - sentAt));
  const firstShown = since(front.firstShownAt);
  const firstLasting = since(front.firstLastingAt);
  const firstFinal = since(front.firstFinalAt);
  const tokens = usage.completionTokens ?? 0;
  const writingMs = endedAt - (front.firstFinalAt ?? endedAt);
  return {
    firstShownMs: firstShown,
    firstLastingMs: firstLasting,
    firstFinalMs: firstFinal,
    provisionalMs: firstLasting === null || firstFinal === null ? null : Math.max(0, firstFinal - firstLasting),
    regionMs: regionAlone(firstFinal, done.firstText),
    aheadTokens: done.aheadTokens ?? 0,
    totalMs: since(endedAt),
    tokens,
    tokensPerS: tokens > 1 && writingMs > 0 ? ((tokens - 1) * 1000) / writingMs : null,
    earlyShare: front.final.length ? front.earlyChars / front.final.length : 0,
    earlyMeanMs: front.earlyChars ? front.earlyMs / front.earlyChars : 0,
    erasedShare: front.final.length ? front.erasedChars / front.final.length : 0,
    promptTokens: usage.promptTokens ?? 0,
    cachedTokens: usage.cachedTokens ?? 0,
    queueMs: done.queueMs ?? null,
    rttMs: done.rttMs ?? null,
    region: done.region ?? "",
    replica: done.replica ?? "",
    moves: done.moves ?? 0,
    sources: done.tokens ?? null,
    transport: done.transport ?? "",
    whyNoSession: done.why ?? "",
  };
}

/** When the region alone would have had final text here: what the edge estimates, and what lies
 * between the edge and this browser. */
function regionAlone(firstFinalMs, firstText) {
  if (firstFinalMs === null || !firstText?.region_ms) return null;
  return Math.max(0, firstFinalMs - firstText.committed_ms) + firstText.region_ms;
}
