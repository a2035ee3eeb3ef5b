// One prompt, answered twice at the same moment: by Outrider, and by plain streaming, without drafts
// and provisional text. Times are by this browser's clock.

import { addedRttMs, mountDistance } from "./distance.js";
import { byId, fill, h } from "./dom.js";
import { Front } from "./front.js";
import { ms } from "./times.js";

const PLAIN = { speculation: "off", provisional: false };
const MAX_SEED = 2 ** 32;

/** What is known of one side. */
class Side {
  front = new Front();
  firstVisibleMs = null;
  doneMs = null;
  problem = "";
  note = "";
}

let running = null;

/** Ask both ways and show the dialog. `request`: as Outrider's own side is asked. */
export function openSplit(transport, request, prompt) {
  const dialog = byId("split");
  stop();
  const own = { controller: new AbortController(), sides: [new Side(), new Side()], prompt, frame: 0 };
  running = own;
  dialog.onclose = stop;
  byId("split-again").onclick = () => {
    openSplit(transport, { ...request, addedRttMs: addedRttMs() || undefined }, prompt);
  };
  if (!dialog.open) dialog.showModal();
  mountDistance(byId("split-distance"));
  draw(own);
  return ask(own, transport, request);
}

function stop() {
  running?.controller.abort();
  running = null;
}

async function ask(own, transport, request) {
  // The same seed on both sides: then the texts have to be the same.
  const seed = request.sampling.seed ?? Math.floor(Math.random() * MAX_SEED);
  const same = { ...request, sampling: { ...request.sampling, seed }, typingId: undefined };
  const sentAt = performance.now();
  await Promise.all(
    own.sides.map((side, number) => {
      const asked = { ...same, ...(number ? PLAIN : {}), idempotencyKey: crypto.randomUUID() };
      return read(own, side, transport.chat(asked, { signal: own.controller.signal }), sentAt);
    }),
  );
  if (running === own) byId("split-said").textContent = verdict(own).join(" ");
}

async function read(own, side, events, sentAt) {
  try {
    for await (const event of events) {
      if (event.type === "provisional") side.front.provisional(event);
      else if (event.type === "committed") side.front.commit(event);
      else if (event.type === "moved") side.note = "A server was lost; another one continued.";
      else if (event.type === "interrupted") side.note = "The connection was lost and tried again.";
      if (running !== own) return;
      redraw(own, sentAt);
    }
    side.front.end();
    side.doneMs = performance.now() - sentAt;
  } catch (error) {
    side.problem = error.message;
  }
  if (running === own) redraw(own, sentAt);
}

function redraw(own, sentAt) {
  own.frame ||= requestAnimationFrame((now) => {
    own.frame = 0;
    if (running !== own) return;
    for (const side of own.sides) {
      if (side.front.text.trim()) side.firstVisibleMs ??= Math.max(0, now - sentAt);
    }
    draw(own);
  });
}

function draw(own) {
  const [outrider, plain] = own.sides;
  byId("split-prompt").textContent = own.prompt;
  fill(byId("split-sides"), [column("Outrider", outrider, "of-edge"), column("Plain streaming", plain, "of-region")]);
  fill(byId("split-verdict"), verdict(own).map((text) => h("p", {}, text)));
  byId("split-again").disabled = !isOver(outrider) || !isOver(plain);
}

function column(name, side, kind) {
  return h(
    "section",
    { key: name, class: `split-side ${kind}`, "aria-label": name },
    h("h3", {}, name),
    h(
      "dl",
      { class: "tabular" },
      h("div", {}, h("dt", {}, "First text visible"), h("dd", { class: "split-first" }, ms(side.firstVisibleMs))),
      h("div", {}, h("dt", {}, "Whole reply"), h("dd", { class: "split-whole" }, ms(side.doneMs))),
    ),
    h(
      "div",
      { class: "split-text", tabindex: "0", role: "region", "aria-label": `Reply, ${name}` },
      side.front.final,
      side.front.guess ? h("span", { class: "guess" }, side.front.guess) : null,
    ),
    side.problem || side.note ? h("p", { class: "fine" }, side.problem || side.note) : null,
  );
}

function isOver(side) {
  return side.doneMs !== null || side.problem !== "";
}

function verdict({ sides: [outrider, plain] }) {
  if (!isOver(outrider) || !isOver(plain)) return [];
  if (outrider.problem || plain.problem) return ["One of them failed, so there is nothing to compare."];
  const isEqual = outrider.front.final === plain.front.final;
  const sooner = plain.firstVisibleMs - outrider.firstVisibleMs;
  const length = [...outrider.front.final].length;
  return [
    isEqual ? `Both texts are equal, all ${length} characters.` : "The texts differ. They must not: please report it.",
    `The first text was visible ${ms(Math.abs(sooner))} ${sooner >= 0 ? "sooner" : "later"} than with plain streaming.`,
  ];
}
