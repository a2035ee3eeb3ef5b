// The mesh as the page shows it, from what GET v1/mesh says. Pure.

const KEPT = 120;
/** States of a replica, with their colour and the word that is shown. */
const STATES = {
  READY: ["good", "ready"],
  CONNECTING: ["early", "connecting"],
  SUSPECT: ["early", "silent"],
  DRAINING: ["early", "draining"],
  TRIAL: ["early", "on trial"],
  QUARANTINED: ["warn", "quarantined"],
  DOWN: ["warn", "down"],
};
const REASONS = {
  REPLICA_LOST: "the replica was lost",
  DRAINING: "the replica was drained",
  OVERLOADED: "the replica was full",
  UNAVAILABLE: "the replica was not there",
};

/** `{kind, word}` of a replica or a router. */
export function stateOf(state) {
  const [kind, word] = STATES[state] ?? ["early", state.toLowerCase()];
  return { kind, word };
}

/** Whether what a replica last reported of its load still holds. */
export function isThere(replica) {
  return replica.state !== "DOWN" && replica.state !== "CONNECTING";
}

/** Regions by distance from the edge, each with its models and replicas. */
export function regionsOf(mesh) {
  const names = new Set([
    ...mesh.replicas.map((it) => it.region),
    ...mesh.models.flatMap((it) => it.regions.map((region) => region.name)),
  ]);
  return [...names].map((name) => regionOf(mesh, name)).sort(nearestFirst);
}

function regionOf(mesh, name) {
  const replicas = mesh.replicas.filter((it) => it.region === name);
  const models = mesh.models.flatMap((model) =>
    model.regions
      .filter((it) => it.name === name)
      .map((it) => ({ ...it, model: model.name, waiting: model.waiting_sessions })),
  );
  const ready = replicas.filter((it) => it.state === "READY");
  return {
    name,
    replicas,
    models,
    numReady: ready.length,
    rttMs: distanceOf(mesh, replicas),
    running: sum(replicas.filter(isThere), "running_sessions"),
    queued: sum(replicas.filter(isThere), "queued_sessions"),
    kind: ready.length === 0 ? "warn" : ready.length < replicas.length ? "early" : "good",
  };
}

/** Round trip from the edge: to its nearest router, and from there to the nearest replica. Null if
 * either was not measured. */
function distanceOf(mesh, replicas) {
  const routers = mesh.edge.routers.filter((it) => it.state === "READY").map((it) => it.rtt_ms);
  const ways = replicas.filter((it) => it.min_rtt_ms > 0).map((it) => it.rtt_ms);
  if (!routers.length || !ways.length) return null;
  return Math.min(...routers) + Math.min(...ways);
}

/** By least round trips, which do not change from second to second. */
function nearestFirst(one, other) {
  return nearness(one) - nearness(other) || (one.name < other.name ? -1 : 1);
}

function nearness(region) {
  const least = region.replicas.filter((it) => it.min_rtt_ms > 0).map((it) => it.min_rtt_ms);
  return least.length ? Math.round(Math.min(...least) / 5) : Infinity;
}

/** What stands at the top of the page. */
export function totalsOf(mesh) {
  const recents = mesh.models.flatMap((it) => it.regions.map((region) => region.recent));
  const accepted = sum(recents, "accepted_tokens");
  const drafted = sum(recents, "draft_tokens");
  const asked = recents.filter((it) => it.first_tokens > 0);
  return {
    numReplicas: mesh.replicas.length,
    numReady: mesh.replicas.filter((it) => it.state === "READY").length,
    running: sum(mesh.replicas.filter(isThere), "running_sessions"),
    queued: sum(mesh.replicas.filter(isThere), "queued_sessions") + sum(mesh.models, "waiting_sessions"),
    ttftMs: asked.length ? weighted(asked, "ttft_p50_ms", "first_tokens") : null,
    tokensPerS: sum(recents.map((it) => ({ rate: it.completion_tokens / it.window_s })), "rate"),
    acceptedShare: drafted ? accepted / drafted : null,
  };
}

/** One line of text about a move. */
export function moveText(move) {
  const why = REASONS[move.reason] ?? move.reason.toLowerCase().replaceAll("_", " ");
  return `${why}, ${(move.pause_ms / 1000).toFixed(2)} s without a token`;
}

/** `75 s` as people say it. */
export function ago(seconds) {
  for (const [unitS, unit] of [[86_400, "d"], [3_600, "h"], [60, "min"]]) {
    if (seconds >= unitS) return `${Math.floor(seconds / unitS)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}

/** Replicas whose state is another one than before, as sentences. */
export function changes(before, after) {
  if (!before) return [];
  const known = new Map(before.replicas.map((it) => [it.name, it.state]));
  return after.replicas
    .filter((it) => known.has(it.name) && known.get(it.name) !== it.state)
    .map((it) => `${it.name} is ${stateOf(it.state).word}`);
}

/** The last two minutes of some numbers, by name. */
export class History {
  #series = new Map();

  /** Add a number, null for none. Series that got none with this call's names are dropped. */
  add(values) {
    for (const name of this.#series.keys()) if (!(name in values)) this.#series.delete(name);
    for (const [name, value] of Object.entries(values)) {
      const series = this.#series.get(name) ?? [];
      series.push(value);
      if (series.length > KEPT) series.shift();
      this.#series.set(name, series);
    }
  }

  of(name) {
    return this.#series.get(name) ?? [];
  }
}

/** The `d` of a line through numbers, `width` by `height`; gaps where a number is null. `most`: the
 * number at the top. */
export function sparkline(series, { width, height, most }) {
  const step = width / (KEPT - 1);
  const begin = width - step * (series.length - 1);
  let isOpen = false;
  const parts = series.map((value, number) => {
    if (value === null) {
      isOpen = false;
      return "";
    }
    const x = (begin + step * number).toFixed(1);
    const y = (height - 1 - (height - 2) * Math.min(1, value / most)).toFixed(1);
    const part = `${isOpen ? "L" : "M"}${x} ${y}`;
    isOpen = true;
    return part;
  });
  return parts.join("");
}

function sum(rows, name) {
  return rows.reduce((total, it) => total + it[name], 0);
}

function weighted(rows, name, weight) {
  return rows.reduce((total, it) => total + it[name] * it[weight], 0) / sum(rows, weight);
}
