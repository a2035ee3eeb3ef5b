// Conversations, event streams and settings.

import assert from "node:assert/strict";
import { test } from "node:test";

import * as conversations from "../../../services/edge/ui/static/conversation.js";
import { EventReader } from "../../../services/edge/ui/static/sse.js";
import { DEFAULTS, problem, samplingOf } from "../../../services/edge/ui/static/settings.js";

function example() {
  const made = conversations.begun(0, "c");
  const add = (id, role, parent, rest) => conversations.add(made, { id, role, parent, at: Number(id.slice(1)), ...rest });
  add("m1", "user", null, { content: "One?" });
  add("m2", "assistant", "m1", { content: "1", model: "small" });
  add("m3", "user", "m2", { content: "Two?" });
  add("m4", "assistant", "m3", { content: "2" });
  add("m5", "assistant", "m1", { content: "I", calls: [{ index: 0, id: "x", name: "f", arguments: "{}" }] });
  add("m6", "tool", "m5", { content: "r", callId: "x", name: "f" });
  return made;
}

test("edits and retries are branches of which one is shown", () => {
  const made = example();
  const shown = () => conversations.path(made).map((it) => it.id);
  assert.deepEqual(shown(), ["m1", "m5", "m6"]);
  assert.deepEqual(conversations.siblings(made, "m5").map((it) => it.id), ["m2", "m5"]);
  conversations.show(made, "m2");
  assert.deepEqual(shown(), ["m1", "m2", "m3", "m4"]);
  assert.equal(made.title, "One?");
});

test("the model is asked with the branch, calls and their results", () => {
  const made = example();
  assert.deepEqual(conversations.asked(made, "m6", "Be short."), [
    { role: "system", content: "Be short." },
    { role: "user", content: "One?" },
    {
      role: "assistant",
      content: "I",
      tool_calls: [{ id: "x", type: "function", function: { name: "f", arguments: "{}" } }],
    },
    { role: "tool", tool_call_id: "x", content: "r" },
  ]);
  assert.deepEqual(conversations.asked(made, "m1").map((it) => it.content), ["One?"]);
});

test("exports have what is shown, or all of it", () => {
  const made = example();
  conversations.show(made, "m2");
  assert.equal(
    conversations.toMarkdown(made),
    "# One?\n\n## You\n\nOne?\n\n## small\n\n1\n\n## You\n\nTwo?\n\n## Assistant\n\n2\n",
  );
  const read = JSON.parse(conversations.toJson(made));
  assert.equal(Object.keys(read.nodes).length, 6);
  assert.equal(read.format, "outrider.conversation");
});

test("titles are short and whole characters", () => {
  assert.equal(conversations.titleOf("  a\n b "), "a b");
  assert.equal(Array.from(conversations.titleOf("😀".repeat(100))).length, 60);
});

test("events are read whatever the pieces", () => {
  const stream = 'id: 1-3\ndata: {"a":1}\n\n: still here\nevent: outrider.provisional\r\ndata: x\r\ndata:y\r\n\r\ndata: [DONE]\n\n';
  const whole = new EventReader().read(stream);
  assert.deepEqual(whole, [
    { name: "", data: '{"a":1}', id: "1-3" },
    { name: "outrider.provisional", data: "x\ny", id: "" },
    { name: "", data: "[DONE]", id: "" },
  ]);
  for (let at = 0; at < stream.length; at++) {
    const reader = new EventReader();
    const found = [...reader.read(stream.slice(0, at)), ...reader.read(stream.slice(at))];
    assert.deepEqual(found, whole);
  }
});

test("settings are checked, and empty ones are the model's", () => {
  assert.equal(problem(DEFAULTS), null);
  assert.deepEqual(samplingOf(DEFAULTS), {});
  assert.deepEqual(samplingOf({ ...DEFAULTS, temperature: "0", seed: "7" }), { temperature: 0, seed: 7 });
  for (const [name, value] of [["temperature", "3"], ["top_p", "x"], ["max_tokens", "0"], ["seed", "1.5"], ["tools", "{"]]) {
    assert.equal(problem({ ...DEFAULTS, [name]: value }).name, name);
  }
});
