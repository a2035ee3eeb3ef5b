// A conversation: a tree of messages, of which one branch is shown. Pure.

/** An empty one. `now`: Unix time in ms. */
export function begun(now, id) {
  return { version: 1, id, title: "", createdAt: now, updatedAt: now, nodes: {}, leaf: null, settings: {} };
}

/** Messages of the branch that is shown, the first one first. */
export function path(conversation, leaf = conversation.leaf) {
  const messages = [];
  for (let id = leaf; id !== null && id !== undefined; id = conversation.nodes[id].parent) {
    messages.push(conversation.nodes[id]);
  }
  return messages.reverse();
}

/** Put a message behind `parent` (null: at the beginning) and show it. */
export function add(conversation, message) {
  conversation.nodes[message.id] = message;
  conversation.leaf = message.id;
  if (!conversation.title && message.role === "user") conversation.title = titleOf(message.content);
  return message;
}

/** The messages that stand in the same place, oldest first. */
export function siblings(conversation, id) {
  const { parent, role } = conversation.nodes[id];
  return Object.values(conversation.nodes)
    .filter((it) => it.parent === parent && it.role === role)
    .sort((one, other) => one.at - other.at);
}

/** Show the branch of a sibling, to its newest end. */
export function show(conversation, id) {
  let leaf = id;
  for (;;) {
    const next = Object.values(conversation.nodes)
      .filter((it) => it.parent === leaf)
      .sort((one, other) => one.at - other.at)
      .at(-1);
    if (!next) break;
    leaf = next.id;
  }
  conversation.leaf = leaf;
}

/** What the model is to read before the message behind `leaf`. */
export function asked(conversation, leaf, system = "") {
  const messages = system.trim() ? [{ role: "system", content: system }] : [];
  for (const it of path(conversation, leaf)) messages.push(...apiMessages(it));
  return messages;
}

function apiMessages(message) {
  if (message.role !== "assistant") {
    return [
      message.role === "tool"
        ? { role: "tool", tool_call_id: message.callId, content: message.content }
        : { role: message.role, content: message.content },
    ];
  }
  const calls = (message.calls ?? []).map((it) => ({
    id: it.id,
    type: "function",
    function: { name: it.name, arguments: it.arguments },
  }));
  if (!message.content && !calls.length) return [];
  const made = { role: "assistant", content: message.content };
  if (calls.length) made.tool_calls = calls;
  return [made];
}

export function titleOf(text) {
  const line = text.trim().replace(/\s+/g, " ");
  const points = Array.from(line);
  return points.length > 60 ? `${points.slice(0, 59).join("").trimEnd()}…` : line;
}

/** The branch that is shown, as Markdown. */
export function toMarkdown(conversation) {
  const parts = [`# ${conversation.title || "Conversation"}`];
  for (const it of path(conversation)) {
    const who = { user: "You", assistant: it.model || "Assistant", tool: "Tool" }[it.role];
    parts.push(`## ${who}`);
    if (it.reasoning) parts.push(`<details><summary>Thinking</summary>\n\n${it.reasoning}\n\n</details>`);
    if (it.content) parts.push(it.content);
    for (const call of it.calls ?? []) parts.push("```json\n" + `${call.name}(${call.arguments})` + "\n```");
    if (it.note) parts.push(`> ${it.note}`);
  }
  return `${parts.join("\n\n")}\n`;
}

/** All branches, as JSON. */
export function toJson(conversation) {
  return `${JSON.stringify({ format: "outrider.conversation", ...conversation }, null, 2)}\n`;
}
