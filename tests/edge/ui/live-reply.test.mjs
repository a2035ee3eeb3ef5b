// What becomes of a reply's message and of the quiet line below it.

import assert from "node:assert/strict";
import { test } from "node:test";

import { LiveReply } from "../../../services/edge/ui/static/live-reply.js";

function written(...events) {
  const message = { content: "", pending: { lastId: "" } };
  const reply = new LiveReply(message, 0);
  for (const it of events) reply.take(it);
  return { message, reply };
}

const text = (said, at) => ({ type: "committed", text: said, at });

test("a silence is told once, and forgotten when words come", () => {
  const { message, reply } = written(text("Bread", 10));
  assert.equal(reply.isSilent(1200), false);
  assert.equal(reply.isSilent(1300), true);
  assert.match(message.note, /No word for a moment/);
  assert.equal(reply.isSilent(1600), false);
  reply.take(text(" is", 2000));
  assert.equal(message.note, "");
});

test("before the first word there is no silence to tell", () => {
  const { message, reply } = written();
  assert.equal(reply.isSilent(60_000), false);
  assert.equal(message.note, undefined);
});

test("an interruption stays told when a silence came before it", () => {
  const { message, reply } = written(text("Bread", 10));
  reply.isSilent(1300);
  assert.match(reply.take({ type: "interrupted", at: 2000 }), /trying again/);
  assert.equal(reply.isSilent(9000), false);
  reply.take({ type: "resumed", at: 10_000, afterMs: 8000 });
  reply.take(text(" is old.", 10_001));
  reply.take({ type: "done", at: 10_002, finishReason: "length" });
  reply.end(10_002);
  assert.equal(
    message.note,
    "The connection was lost for 8000 ms. Nothing is missing. The reply reached its limit of tokens.",
  );
  assert.equal(message.content, "Bread is old.");
  assert.equal(message.pending, undefined);
});

test("what fails says why, and no longer that it is tried again", () => {
  const { message, reply } = written(text("Bread", 10), { type: "interrupted", at: 20 });
  reply.fail("The edge cannot be reached.");
  assert.deepEqual([message.note, message.error], ["", "The edge cannot be reached."]);
  assert.equal(message.content, "Bread");
});

test("the id of the last event is kept until the reply is over, and calls are put together", () => {
  const { message, reply } = written(
    { type: "tool", index: 0, id: "a", name: "find", arguments: '{"q":', at: 1 },
    { type: "tool", index: 0, arguments: '"x"}', at: 2, eventId: "e2" },
  );
  assert.equal(message.pending.lastId, "e2");
  assert.deepEqual(message.calls, [{ index: 0, id: "a", name: "find", arguments: '{"q":"x"}' }]);
  reply.take({ type: "done", at: 3, moves: 1, region: "eu-west", finishReason: "tool_calls" });
  reply.end(3);
  assert.match(message.note, /^A server was lost .* Another in eu-west continued/);
});
