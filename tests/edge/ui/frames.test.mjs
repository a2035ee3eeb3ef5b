import assert from "node:assert/strict";
import { test } from "node:test";
import { chatFrame, readEvent } from "../../../services/edge/ui/static/frames.js";

const REQUEST = { messages: [], sampling: {}, provisional: true, idempotencyKey: "k" };
const CREDENTIAL = { key: "or_key", clientSecret: undefined };

/** As `EdgeFrame(done=ChatDone(upto=3, first_text=FirstText(1.5, 2.5, 3.5, 4.5)))` is written. */
const DONE = [42, 25, 40, 3, 130, 1, 20, 13, 0, 0, 192, 63, 21, 0, 0, 32, 64, 29, 0, 0, 96, 64, 37, 0, 0, 144, 64];

test("the end says when the edge had the first text", () => {
  const done = readEvent(new Uint8Array(DONE));
  const { provisional_ms, staying_ms, committed_ms, region_ms } = done.firstText;
  assert.deepEqual([provisional_ms, staying_ms, committed_ms, region_ms], [1.5, 2.5, 3.5, 4.5]);
});

test("an end without it says nothing", () => {
  assert.equal(readEvent(new Uint8Array([42, 2, 40, 3])).firstText, undefined);
});

test("a distance is asked for as field 30, and none is not written", () => {
  const bytes = (more) => Array.from(chatFrame({ ...REQUEST, ...more }, CREDENTIAL, 7));
  const far = bytes({ addedRttMs: 150 });
  assert.deepEqual(far.slice(-4), [0xf0, 0x01, 0x96, 0x01]);
  assert.equal(far.length - bytes({}).length, 4);
});

test("the number of a run stands in what the client has of the chat, and alone if it has nothing", () => {
  const begun = { token: "t", upto: 1, ids: [5], numChars: 2, modelIdentity: null, templateDate: "" };
  const holds = (progress, part) => {
    const text = Array.from(chatFrame(REQUEST, CREDENTIAL, 300, progress)).join();
    return text.includes(part.join());
  };
  assert.ok(holds(null, [82, 3, 56, 172, 2]));
  assert.ok(holds(begun, [82, 13, 10, 1, 116, 16, 1, 24, 2, 34, 1, 5, 56, 172, 2]));
});

test("a description may have fields that this page does not know", () => {
  // EdgeFrame(description=EdgeDescription(edge="e", edge_list=b"{}"))
  assert.equal(readEvent(new Uint8Array([58, 7, 10, 1, 101, 42, 2, 123, 125])).kind, "description");
});
