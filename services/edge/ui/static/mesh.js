// The operator's page: what GET v1/mesh says, as it changes.

import { headers, setKey } from "./credentials.js";
import { byId, fill, h } from "./dom.js";
import { History, ago, changes, isThere, moveText, regionsOf, sparkline, stateOf, totalsOf } from "./mesh-view.js";
import { EventReader } from "./sse.js";

const PATH = "../v1/mesh";
const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 10_000;
const SILENT_MS = 5000;
const LINE = { width: 120, height: 26 };

const history = new History();
let last = null;
let lastAt = 0;
let controller = null;
let isPaused = false;
let isAsking = false;

// What is shown.

function show(mesh) {
  for (const text of changes(last, mesh)) say(text);
  last = mesh;
  lastAt = performance.now();
  remember(mesh);
  problem("");
  state("good", `Live · ${mesh.edge.name}${mesh.edge.region ? ` in ${mesh.edge.region}` : ""}`);
  fill(byId("view"), [totals(mesh), regionsOf(mesh).map((it) => region(it)), moves(mesh.moves)]);
}

function remember(mesh) {
  const values = {};
  for (const it of regionsOf(mesh)) {
    values[`queue ${it.name}`] = it.queued;
    for (const model of it.models) {
      values[`ttft ${it.name} ${model.model}`] = model.recent.first_tokens ? model.recent.ttft_p50_ms : null;
    }
  }
  history.add(values);
}

function totals(mesh) {
  const it = totalsOf(mesh);
  const tiles = [
    ["Replicas ready", `${it.numReady} of ${it.numReplicas}`, it.numReady < it.numReplicas ? "warn" : ""],
    ["Chats running", String(it.running)],
    ["Waiting", String(it.queued), it.queued ? "early" : ""],
    ["First token", it.ttftMs === null ? "–" : ms(it.ttftMs)],
    ["Tokens a second", it.tokensPerS.toFixed(it.tokensPerS < 10 ? 1 : 0)],
    ["Drafts accepted", it.acceptedShare === null ? "–" : percent(it.acceptedShare)],
  ];
  return h(
    "section",
    { key: "totals", class: "mesh-totals", "aria-label": "All regions" },
    h(
      "dl",
      { class: "tabular" },
      tiles.map(([name, value, kind]) => h("div", { key: name, class: kind || undefined }, h("dt", {}, name), h("dd", {}, value))),
    ),
  );
}

function region(it) {
  const id = `region-${it.name.replace(/[^A-Za-z0-9_-]/g, "-")}`;
  return h(
    "section",
    { key: `region ${it.name}`, class: "card mesh-region", "aria-labelledby": id },
    h(
      "div",
      { class: "mesh-region-head" },
      h("h2", { id }, h("span", { class: `dot ${it.kind}`, "aria-hidden": "true" }), it.name),
      h("p", { class: "mesh-fine" }, `${it.numReady} of ${it.replicas.length} ready`),
      way(it.rttMs),
    ),
    h("div", { class: "mesh-models" }, it.models.map((model) => modelOf(it, model))),
    replicas(it),
  );
}

/** The distance from this edge as a line. */
function way(rttMs) {
  const length = rttMs === null ? 0 : Math.min(150, 12 + 8 * Math.sqrt(rttMs));
  const said = rttMs === null ? "The distance was not measured yet" : `${round(rttMs)} ms round trip from this edge`;
  return h(
    "svg",
    { class: "mesh-way", viewBox: `0 0 ${length + 110} 20`, width: length + 110, height: 20, role: "img", "aria-label": said },
    h("circle", { class: "at-edge", cx: 6, cy: 10, r: 4 }),
    h("line", { x1: 11, y1: 10, x2: 11 + length, y2: 10 }),
    h("circle", { class: "at-region", cx: 17 + length, cy: 10, r: 4 }),
    h("text", { x: 27 + length, y: 14 }, rttMs === null ? "not measured" : `${round(rttMs)} ms`),
  );
}

function modelOf(region, it) {
  const recent = it.recent;
  const series = history.of(`ttft ${region.name} ${it.model}`);
  const queue = history.of(`queue ${region.name}`);
  const has = recent.first_tokens > 0;
  return h(
    "div",
    { key: it.model, class: "mesh-model" },
    h("h3", {}, it.model),
    h(
      "dl",
      { class: "tabular" },
      chart("First token, median", has ? ms(recent.ttft_p50_ms) : "–", has ? `p95 ${ms(recent.ttft_p95_ms)}` : "none in the last minute", series, "edge", ms),
      chart("Queue", String(region.queued), `${it.waiting} wait at the router`, queue, "early", String),
      fact("Next one waits", it.ready_replicas ? ms(it.predicted_wait_ms) : "–"),
      fact("Tokens a second", recent.ended ? (recent.completion_tokens / recent.window_s).toFixed(1) : "–"),
      fact("Drafts accepted", recent.draft_tokens ? percent(recent.accepted_tokens / recent.draft_tokens) : "–"),
      it.advice ? fact("Replicas wanted", String(it.advice.desired_replicas)) : null,
    ),
  );
}

function fact(name, value) {
  return h("div", { key: name }, h("dt", {}, name), h("dd", {}, value));
}

function chart(name, value, note, series, kind, worded) {
  const known = series.filter((it) => it !== null);
  const most = Math.max(...known, kind === "early" ? 4 : 1);
  const said = known.length ? `${name} in the last two minutes: now ${value}, at most ${worded(Math.max(...known))}` : `${name}: nothing yet`;
  return h(
    "div",
    { key: name, class: "mesh-chart" },
    h("dt", {}, name),
    h(
      "dd",
      {},
      h("span", { class: "mesh-value" }, value),
      h(
        "svg",
        { class: `mesh-line ${kind}`, viewBox: `0 0 ${LINE.width} ${LINE.height}`, role: "img", "aria-label": said },
        h("path", { d: sparkline(series, { ...LINE, most }) }),
      ),
      h("span", { class: "mesh-fine" }, note),
    ),
  );
}

function replicas(region) {
  const heads = [
    ["Replica", ""],
    ["State", ""],
    ["Chats", "number"],
    ["Queued", "number"],
    ["KV in use", ""],
    ["Wait", "number wide"],
    ["From the router", "number wide"],
    ["Model", "wide"],
  ];
  return h(
    "table",
    { class: "mesh-table tabular" },
    h("caption", { class: "sr-only" }, `Replicas in ${region.name}`),
    h("thead", {}, h("tr", {}, heads.map(([name, kind]) => h("th", { scope: "col", class: kind || undefined }, name)))),
    h("tbody", {}, region.replicas.map(replica)),
  );
}

function replica(it) {
  const { kind, word } = stateOf(it.state);
  const isUp = isThere(it);
  const used = isUp && it.kv_blocks_total ? 1 - it.kv_blocks_free / it.kv_blocks_total : null;
  const notes = [
    it.overload_level ? "overloaded" : null,
    it.quarantines ? `quarantined ${it.quarantines}×` : null,
    it.inconsistent ? "computes another model than it says" : null,
  ].filter(Boolean);
  return h(
    "tr",
    { key: it.name },
    h("th", { scope: "row" }, it.name),
    h(
      "td",
      {},
      h("span", { class: `dot ${kind}`, "aria-hidden": "true" }),
      h("span", { class: kind }, word),
      h("span", { class: "mesh-fine" }, ` ${ago(it.state_s)}`),
      notes.length ? h("span", { class: "mesh-note" }, notes.join(", ")) : null,
    ),
    h("td", { class: "number" }, isUp && it.max_sessions ? `${it.running_sessions} of ${it.max_sessions}` : "–"),
    h("td", { class: isUp && it.queued_sessions ? "number early" : "number" }, isUp ? String(it.queued_sessions) : "–"),
    h("td", {}, used === null ? "–" : meter(used)),
    h("td", { class: "number wide" }, it.state === "READY" ? ms(it.predicted_wait_ms) : "–"),
    h("td", { class: "number wide" }, `${it.min_rtt_ms ? "" : "about "}${round(it.rtt_ms)} ms`),
    h("td", { class: "wide" }, it.model || "not known yet", it.identity ? h("span", { class: "mesh-fine mono" }, ` ${it.identity.slice(0, 8)}`) : null),
  );
}

function meter(used) {
  return [
    h("span", { class: "mesh-meter", "aria-hidden": "true" }, h("span", { class: used > 0.9 ? "warn" : "region", style: { width: `${100 * used}%` } })),
    percent(used),
  ];
}

function moves(rows) {
  return h(
    "section",
    { key: "moves", class: "card mesh-moves", "aria-labelledby": "moves" },
    h("h2", { id: "moves" }, "Recent moves"),
    rows.length
      ? h(
          "ol",
          { class: "tabular" },
          rows.slice(0, 12).map((it) =>
            h(
              "li",
              {},
              h("span", { class: "mesh-when" }, `${ago(it.age_s)} ago`),
              h("span", {}, h("b", {}, it.left), " → ", h("b", {}, it.replica), h("span", { class: "mesh-fine" }, ` ${moveText(it)}`)),
            ),
          ),
        )
      : h("p", { class: "mesh-fine" }, "No chat had to continue on another replica."),
  );
}

function state(kind, text) {
  byId("dot").className = `dot ${kind}`;
  if (byId("state").textContent !== text) byId("state").textContent = text;
}

function problem(text) {
  const node = byId("problem");
  if (node.textContent !== text) node.textContent = text;
  node.hidden = !text;
}

/** Tell people who do not see the page. */
function say(text) {
  byId("said").textContent = text;
}

function ms(value) {
  return value >= 10_000 ? `${(value / 1000).toFixed(1)} s` : `${round(value)} ms`;
}

function round(value) {
  return value < 10 ? value.toFixed(1) : String(Math.round(value));
}

function percent(share) {
  return `${Math.round(100 * share)} %`;
}

// Where it comes from.

/** Watch until the page is hidden or paused, or it makes no sense to try again. */
async function watch() {
  controller?.abort();
  const own = (controller = new AbortController());
  let delay = FIRST_RETRY_MS;
  while (!own.signal.aborted) {
    try {
      for await (const mesh of meshes(own.signal)) {
        delay = FIRST_RETRY_MS;
        if (mesh.error) trouble(mesh.error.message);
        else show(mesh);
      }
      trouble("The edge ended the stream.");
    } catch (error) {
      if (own.signal.aborted) return;
      const isRefused = error instanceof Refused;
      trouble(isRefused ? error.message : "The edge cannot be reached; trying again.");
      if (isRefused && error.needsKey) askKey(error.message);
      if (isRefused && !error.mayRetry) return;
    }
    await new Promise((resolve) => setTimeout(resolve, delay * (0.5 + Math.random() / 2)));
    delay = Math.min(2 * delay, MAX_RETRY_MS);
  }
}

/** The edge's own answer. `mayRetry`: it may be another one later. */
class Refused extends Error {
  constructor(message, { needsKey, mayRetry }) {
    super(message);
    this.needsKey = needsKey;
    this.mayRetry = mayRetry;
  }
}

async function* meshes(signal) {
  const answer = await fetch(PATH, { headers: { accept: "text/event-stream", ...headers() }, signal, cache: "no-store" });
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    const message = said.error?.message ?? `The edge answers ${answer.status}.`;
    throw new Refused(message, {
      needsKey: answer.status === 401 || answer.status === 403,
      mayRetry: answer.status === 429 || answer.status >= 500,
    });
  }
  const reader = new EventReader();
  const stream = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await stream.read();
    if (done) return;
    for (const event of reader.read(value)) yield JSON.parse(event.data);
  }
}

function trouble(text) {
  state("warn", last ? `Not live since ${new Date().toLocaleTimeString()}` : "Not connected");
  problem(text);
}

function askKey(why) {
  if (isAsking) return;
  isAsking = true;
  byId("key-why").textContent = why || "This page needs a key with the scope “mesh”. It stays in this tab and is sent to this edge alone.";
  byId("key").value = "";
  byId("key-dialog").showModal();
}

byId("key-form").addEventListener("submit", () => {
  setKey(byId("key").value.trim(), { remember: byId("key-remember").checked });
  watch();
});
byId("key-dialog").addEventListener("close", () => (isAsking = false));
byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
byId("change-key").addEventListener("click", () => askKey(""));
byId("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  byId("pause").setAttribute("aria-pressed", String(isPaused));
  if (isPaused) {
    controller?.abort();
    state("early", "Paused");
  } else watch();
});
// A page that nobody sees takes no place among those that watch.
document.addEventListener("visibilitychange", () => {
  if (isPaused) return;
  if (document.hidden) controller?.abort();
  else watch();
});
setInterval(() => {
  const isSilent = last && !isPaused && performance.now() - lastAt > SILENT_MS;
  if (isSilent && byId("problem").hidden) trouble("Nothing has come from the edge for some seconds.");
}, 1000);
if (!document.hidden) watch();
