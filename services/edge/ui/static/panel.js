// What the edge brought to the newest reply.

import { fill, h } from "./dom.js";
import { pathMap } from "./path-map.js";
import { ms } from "./times.js";

export function share(value) {
  return `${Math.round(100 * value)} %`;
}

/** `reply`: {brought, aloneMs, isOn, isLive}; null before the first one. */
export function showPanel(panel, reply, { toEdgeMs, edge }) {
  fill(panel, [
    h("h2", { class: "panel-title" }, "What the edge brought"),
    reply === null
      ? h("p", { class: "quiet" }, "Times of your newest reply will stand here, measured by this browser’s clock.")
      : [firstWord(reply), way(reply.brought, toEdgeMs, edge), facts(reply.brought)],
  ]);
}

function firstWord({ brought, aloneMs, isLive }) {
  const seen = brought.firstLastingMs;
  const alone = isLive ? null : aloneMs ?? brought.firstFinalMs;
  const most = Math.max(seen ?? 0, alone ?? 0, 1);
  const early = brought.aheadTokens > 0 && aloneMs !== null && brought.firstFinalMs !== null;
  const beforeEnter = early ? Math.max(0, aloneMs - brought.firstFinalMs) : null;
  return h(
    "section",
    { class: "part" },
    h("h3", {}, "Enter to the first word that stayed"),
    bar("This reply", seen, most, "edge"),
    bar("Region alone", alone, most, "region"),
    h(
      "dl",
      { class: "gains tabular" },
      gain("Before Enter", beforeEnter, isLive ? "…" : brought.aheadTokens ? `${brought.aheadTokens} tokens ready` : "not used", "early"),
      gain("Provisional text", brought.provisionalMs, isLive ? "…" : "nothing early", "edge"),
    ),
    alone === null || isLive ? null : h("p", { class: "fine" }, "Region alone: the edge’s estimate, of the server’s own time and the way there."),
  );
}

function bar(label, value, most, kind) {
  const width = value === null || value === undefined ? 0 : Math.max(1.5, (100 * value) / most);
  return h(
    "div",
    { class: "bar tabular" },
    h("span", {}, label),
    h("span", { class: "bar-value" }, ms(value)),
    h("span", { class: `bar-line ${kind}`, style: { width: `${width}%` } }),
  );
}

function gain(label, value, otherwise, kind) {
  return [
    h("dt", {}, h("span", { class: `dot ${kind}` }), label),
    h("dd", {}, value ? `${ms(value)} sooner` : otherwise),
  ];
}

function way(brought, toEdgeMs, edge) {
  if (!brought.region) return null;
  const stops = [
    { name: "This browser" },
    { name: "Edge", note: edge, kind: "at-edge" },
    { name: "Router" },
    ...(brought.lost ?? []).map((it) => ({ name: it, note: "lost", kind: "lost" })),
    { name: brought.region, below: brought.replica, kind: "at-region" },
  ];
  const links = [toEdgeMs, brought.rttMs || null, ...stops.slice(3).map(() => null)];
  return h("section", { class: "part" }, h("h3", {}, "Its path"), pathMap(stops, links));
}

function facts(brought) {
  const rows = [
    ["Whole reply", ms(brought.totalMs)],
    ["Speed", brought.tokensPerS === null ? "–" : `${brought.tokensPerS.toFixed(brought.tokensPerS < 10 ? 1 : 0)} tokens/s`],
    ["Length", `${brought.tokens} tokens`],
    ["Prompt", brought.cachedTokens ? `${brought.promptTokens} tokens, ${brought.cachedTokens} cached` : `${brought.promptTokens} tokens`],
    ["Early and right", `${share(brought.earlyShare)}${brought.earlyMeanMs ? `, ${ms(brought.earlyMeanMs)} sooner` : ""}`],
    ["Taken back", share(brought.erasedShare)],
    brought.queueMs === null ? null : ["Waited in a queue", ms(brought.queueMs)],
    brought.moves ? ["Servers lost", String(brought.moves)] : null,
    brought.transport ? ["Came by", brought.transport === "fetch" ? "fetch" : "WebTransport"] : null,
    brought.whyNoSession ? ["Not by WebTransport", brought.whyNoSession] : null,
  ].filter(Boolean);
  return h(
    "section",
    { class: "part" },
    h("h3", {}, "This reply"),
    h("dl", { class: "facts tabular" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    sources(brought.sources),
  );
}

function sources(counts) {
  if (!counts) return null;
  const kinds = [
    ["edge", "drafted by the edge", counts.edge],
    ["region", "by the region", counts.region],
    ["none", "by nobody", counts.none + counts.unknown],
  ].filter((it) => it[2] > 0);
  const total = kinds.reduce((sum, it) => sum + it[2], 0);
  if (!total) return null;
  return [
    h(
      "div",
      { class: "stack", "aria-hidden": "true" },
      kinds.map(([kind, , count]) => h("span", { class: kind, style: { flexGrow: String(count) } })),
    ),
    h("p", { class: "fine" }, `Tokens: ${kinds.map(([, label, count]) => `${count} ${label}`).join(", ")}.`),
  ];
}
