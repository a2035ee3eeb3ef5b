// The messages of a conversation as elements.

import { h } from "./dom.js";
import { Rendering } from "./render.js";
import { ms } from "./times.js";

const renderings = new Map();

function rendering(id) {
  let found = renderings.get(id);
  if (!found) renderings.set(id, (found = new Rendering()));
  return found;
}

export function forgetRenderings() {
  renderings.clear();
}

/** One message. `live`: the reply under way that it is of, {front, now}, or null. `on`: what buttons
 * do, each with the message's id. */
export function turn(message, { live, place, isLast, isBusy, editing, on }) {
  if (message.role === "user") return userTurn(message, { place, isBusy, editing, on });
  if (message.role === "tool") return toolTurn(message);
  return replyTurn(message, { live, place, isLast, isBusy, on });
}

function userTurn(message, { place, isBusy, editing, on }) {
  if (editing === message.id) return editor(message, on);
  return h(
    "article",
    { class: "turn user", key: message.id, "aria-label": "You" },
    h("div", { class: "said" }, message.content),
    h(
      "div",
      { class: "turn-foot" },
      branches(message, place, isBusy, on),
      action("Edit", isBusy, () => on.edit(message.id)),
    ),
  );
}

function editor(message, on) {
  return h(
    "article",
    { class: "turn user editing", key: `${message.id}.edit`, "aria-label": "Edit your message" },
    h(
      "form",
      { class: "editor", onsubmit: (event) => (event.preventDefault(), on.edited(message.id, event.target.elements[0].value)) },
      h(
        "textarea",
        {
          class: "field",
          rows: String(Math.min(12, 1 + message.content.split("\n").length)),
          "aria-label": "Your message",
          onkeydown: (event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              event.target.form.requestSubmit();
            } else if (event.key === "Escape") {
              event.stopPropagation();
              on.edit(null);
            }
          },
        },
        message.content,
      ),
      h(
        "div",
        { class: "row" },
        h("span", { class: "grow" }),
        h("button", { class: "button-quiet", type: "button", onclick: () => on.edit(null) }, "Cancel"),
        h("button", { class: "button", type: "submit" }, "Send"),
      ),
    ),
  );
}

function toolTurn(message) {
  return h(
    "article",
    { class: "turn tool", key: message.id, "aria-label": "Result of a tool" },
    h("details", { class: "fold" }, h("summary", {}, `Result of ${message.name}`), h("pre", { tabindex: "0" }, message.content)),
  );
}

function replyTurn(message, { live, place, isLast, isBusy, on }) {
  const source = live ? live.front.text : message.content;
  const ranges = live ? live.front.ranges(live.now) : (message.marks ?? []);
  const blocks = rendering(message.id).blocks(source, ranges, { open: live !== null });
  const waits = live !== null && !source && !message.reasoning && !(message.calls ?? []).length;
  return h(
    "article",
    {
      class: `turn reply${live ? " live" : ""}`,
      key: message.id,
      "aria-label": message.model || "Reply",
      "aria-busy": live ? "true" : undefined,
    },
    thinking(message, live),
    waits ? h("p", { class: "waits" }, h("span", { class: "caret" })) : null,
    h("div", { class: "prose", key: "prose" }, blocks),
    (message.calls ?? []).map((it) => call(it, message, isLast && !live, on)),
    message.note ? h("p", { class: "note-line", key: "note" }, message.note) : null,
    message.error ? h("p", { class: "problem", key: "error" }, message.error) : null,
    live ? null : foot(message, { place, isBusy, on }),
  );
}

function thinking(message, live) {
  if (!message.reasoning) return null;
  const isNow = live !== null && !live.front.text;
  const took = message.thoughtMs ? ` for ${ms(message.thoughtMs)}` : "";
  return h(
    "details",
    { class: "fold thinking", key: "thinking" },
    h("summary", {}, isNow ? "Thinking…" : `Thought${took}`),
    h("div", { class: "thought" }, message.reasoning),
  );
}

function call(it, message, isOpen, on) {
  return h(
    "div",
    { class: "call card", key: `call-${it.index}` },
    h("p", { class: "call-head" }, "Calls ", h("code", {}, it.name)),
    h("pre", { tabindex: "0", role: "group", "aria-label": `Arguments of ${it.name}` }, pretty(it.arguments)),
    isOpen
      ? h(
          "form",
          { class: "row", onsubmit: (event) => (event.preventDefault(), on.answered(message.id, it, event.target.elements[0].value)) },
          h("input", { class: "field", "aria-label": `Result of ${it.name}`, placeholder: "Its result" }),
          h("button", { class: "button-quiet", type: "submit" }, "Send result"),
        )
      : null,
  );
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function foot(message, { place, isBusy, on }) {
  return h(
    "div",
    { class: "turn-foot", key: "foot" },
    branches(message, place, isBusy, on),
    action("Copy", false, (event) => on.copy(message.id, event.currentTarget)),
    action("Retry", isBusy, () => on.retry(message.id)),
    message.brought ? h("span", { class: "quiet tabular" }, summary(message)) : null,
  );
}

function summary({ brought, model }) {
  const parts = [];
  if (brought.firstLastingMs !== null) parts.push(`first word ${ms(brought.firstLastingMs)}`);
  if (brought.tokensPerS) parts.push(`${Math.round(brought.tokensPerS)} tokens/s`);
  if (model) parts.push(model);
  return parts.join(" · ");
}

function branches(message, { number, count, ids }, isBusy, on) {
  if (count < 2) return null;
  const step = (by, label, path) =>
    h(
      "button",
      {
        class: "button-quiet icon small",
        type: "button",
        "aria-label": label,
        disabled: isBusy || !ids[number + by],
        onclick: () => on.show(ids[number + by]),
      },
      h("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, h("path", { d: path })),
    );
  return h(
    "span",
    { class: "branches tabular", role: "group", "aria-label": "Versions" },
    step(-1, "Earlier version", "M14 7l-5 5 5 5"),
    h("span", {}, `${number + 1} of ${count}`),
    step(1, "Later version", "M10 7l5 5-5 5"),
  );
}

function action(label, isDisabled, onclick) {
  return h("button", { class: "button-quiet small", type: "button", disabled: isDisabled, onclick }, label);
}
