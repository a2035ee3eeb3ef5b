import assert from "node:assert/strict";
import { test } from "node:test";
import { History, ago, changes, moveText, regionsOf, sparkline, stateOf, totalsOf } from "../../../services/edge/ui/static/mesh-view.js";

const RECENT = { window_s: 60, first_tokens: 0, ttft_p50_ms: 0, ended: 0, completion_tokens: 0, draft_tokens: 0, accepted_tokens: 0 };
const replica = (name, region, more = {}) => ({
  name,
  region,
  state: "READY",
  min_rtt_ms: 1,
  rtt_ms: 1,
  running_sessions: 2,
  queued_sessions: 1,
  ...more,
});
const mesh = (replicas, regions = []) => ({
  edge: { name: "e", region: "us", routers: [{ region: "us", state: "READY", rtt_ms: 10, sessions: 0 }] },
  replicas,
  models: [{ name: "m", waiting_sessions: 4, regions }],
  moves: [],
});

test("regions stand by distance, with the way from the edge over the router", () => {
  const found = regionsOf(mesh([replica("far", "eu", { min_rtt_ms: 80, rtt_ms: 82 }), replica("near", "us")]));
  assert.deepEqual(found.map((it) => [it.name, it.rttMs]), [["us", 11], ["eu", 92]]);
});

test("a region whose distance was not measured stands last and says so", () => {
  const found = regionsOf(mesh([replica("new", "ap", { min_rtt_ms: 0, rtt_ms: 100 }), replica("near", "us")]));
  assert.deepEqual(found.map((it) => [it.name, it.rttMs]), [["us", 11], ["ap", null]]);
});

test("a region is as well as its replicas", () => {
  const down = { state: "DOWN" };
  const kinds = (...replicas) => regionsOf(mesh(replicas))[0].kind;
  assert.equal(kinds(replica("a", "us"), replica("b", "us")), "good");
  assert.equal(kinds(replica("a", "us"), replica("b", "us", down)), "early");
  assert.equal(kinds(replica("a", "us", down)), "warn");
});

test("what a lost replica reported last counts no more", () => {
  const totals = totalsOf(mesh([replica("a", "us"), replica("b", "us", { state: "DOWN" })]));
  assert.deepEqual([totals.numReady, totals.numReplicas, totals.running, totals.queued], [1, 2, 2, 5]);
});

test("times are weighted by sessions, and absent without any", () => {
  const asked = (first_tokens, ttft_p50_ms) => ({ name: "us", recent: { ...RECENT, first_tokens, ttft_p50_ms } });
  assert.equal(totalsOf(mesh([], [asked(0, 0)])).ttftMs, null);
  assert.equal(totalsOf(mesh([], [asked(1, 100), asked(3, 200)])).ttftMs, 175);
});

test("changes of state are told once, of replicas that were there before", () => {
  const before = mesh([replica("a", "us"), replica("b", "us")]);
  const after = mesh([replica("a", "us", { state: "DOWN" }), replica("b", "us"), replica("c", "us")]);
  assert.deepEqual(changes(null, after), []);
  assert.deepEqual(changes(before, after), ["a is down"]);
  assert.deepEqual(changes(after, after), []);
});

test("an unknown state or reason is shown by its name", () => {
  assert.deepEqual(stateOf("NEW_ONE"), { kind: "early", word: "new_one" });
  assert.equal(moveText({ reason: "NEW_ONE", pause_ms: 480 }), "new one, 0.48 s without a token");
});

test("times are said as people say them", () => {
  assert.deepEqual([0.4, 59, 60, 3600, 90_000].map(ago), ["0 s", "59 s", "1 min", "1 h", "1 d"]);
});

test("two minutes are kept, of names that are still there", () => {
  const history = new History();
  for (let it = 0; it < 200; it++) history.add({ a: it, b: 1 });
  assert.equal(history.of("a").length, 120);
  assert.equal(history.of("a").at(-1), 199);
  history.add({ a: 1 });
  assert.deepEqual(history.of("b"), []);
});

test("a line ends at the right, has gaps, and stays within its box", () => {
  const d = sparkline([1, null, 4, 8], { width: 119, height: 10, most: 4 });
  assert.equal(d, "M116.0 7.0M118.0 1.0L119.0 1.0");
});
