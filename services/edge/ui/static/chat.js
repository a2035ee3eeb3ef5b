// The chat page: what is shown, what is asked, and what is kept.

import { broughtBy } from "./brought.js";
import { ChatError } from "./chat-error.js";
import * as conversations from "./conversation.js";
import * as credentials from "./credentials.js";
import { addedRttMs, mountDistance } from "./distance.js";
import { byId, fill, h } from "./dom.js";
import { bodyOf } from "./fetch-transport.js";
import { LiveReply } from "./live-reply.js";
import { showPanel } from "./panel.js";
import { copyText } from "./render.js";
import * as settingsStore from "./settings.js";
import { openSplit } from "./split.js";
import * as store from "./store.js";
import { THEMES, setTheme, theme } from "./theme.js";
import { forgetRenderings, turn } from "./thread.js";
import { connect } from "./transport.js";
import { Typing } from "./typing.js";

const SAVE_MS = 1000;
const PENDING_MS = 10 * 60_000;
const WATCH_MS = 250;
const NARROW = matchMedia("(max-width: 900px)");
const KEYS = [
  ["Enter", "Send"],
  ["Shift + Enter", "New line"],
  ["Esc", "Stop the reply"],
  ["↑ in an empty field", "Edit your last message"],
  ["Alt + N", "New conversation"],
  ["Alt + R", "Retry the last reply"],
  ["Alt + C", "Copy the last reply"],
  ["Alt + I", "What the edge brought"],
  ["Alt + K", "This list"],
];

const settings = settingsStore.load();
let listed = [];
let current = fresh();
let live = null;
let editing = null;
let models = [];
let transport = null;
let toEdgeMs = null;
let frame = 0;
let savedAt = 0;
let isAtEnd = true;

const typing = new Typing(
  () => bodyOf(requestFor(current.leaf)),
  () => {
    settings.ahead = false;
    settingsStore.keep(settings);
    byId("ahead").checked = false;
    byId("ahead").disabled = true;
    say("This edge does not begin before Enter.");
  },
);

// What is shown.

function draw() {
  frame = 0;
  const now = performance.now();
  const shown = conversations.path(current);
  const isBusy = live !== null;
  fill(
    byId("thread"),
    shown.map((message, number) => {
      const ids = conversations.siblings(current, message.id).map((it) => it.id);
      return turn(message, {
        live: live?.message === message ? { front: live.front, now } : null,
        place: { ids, number: ids.indexOf(message.id), count: ids.length },
        isLast: number === shown.length - 1,
        isBusy,
        editing,
        on: actions,
      });
    }),
  );
  const empty = byId("empty");
  empty.hidden = shown.length > 0;
  byId("title").textContent = current.title || "New conversation";
  document.title = current.title ? `${current.title} – Outrider` : "Outrider";
  byId("send").hidden = isBusy;
  byId("stop").hidden = !isBusy;
  document.documentElement.classList.toggle("coloured", settings.coloured);
  drawPanel();
  if (isAtEnd) byId("scroll").scrollTop = byId("scroll").scrollHeight;
  if (live?.front.fixes.length) redraw();
}

function redraw() {
  frame ||= requestAnimationFrame(draw);
}

function drawPanel() {
  byId("panel").classList.toggle("open", settings.panel);
  byId("shell").classList.toggle("with-panel", settings.panel);
  byId("toggle-panel").setAttribute("aria-expanded", String(settings.panel));
  if (!settings.panel) return;
  const replies = conversations.path(current).filter((it) => it.brought);
  const last = live ? null : replies.at(-1);
  let reply = null;
  if (live) {
    const brought = broughtBy(live.front, { ...live, endedAt: performance.now() });
    reply = { brought: { ...brought, tokens: live.usage?.completionTokens ?? 0 }, aloneMs: null, isLive: true };
  } else if (last) {
    reply = { brought: last.brought, aloneMs: last.brought.regionMs ?? null, isLive: false };
  }
  showPanel(byId("panel"), reply, { toEdgeMs, edge: location.host });
}

function drawList() {
  fill(
    byId("conversations"),
    listed.map((it) =>
      h(
        "li",
        { key: it.id },
        h(
          "button",
          {
            class: "side-item",
            type: "button",
            "aria-current": it.id === current.id ? "true" : undefined,
            onclick: () => open(it.id),
          },
          it.title || "Untitled",
        ),
        h(
          "button",
          { class: "button-quiet icon small", type: "button", "aria-label": `Delete “${it.title || "Untitled"}”`, onclick: () => drop(it.id) },
          h("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, h("path", { d: "M7 7l10 10M17 7L7 17" })),
        ),
      ),
    ),
  );
}

/** Tell people who do not see the page, once and shortly. */
function say(text) {
  byId("status").textContent = text;
}

// Conversations.

function fresh() {
  return conversations.begun(Date.now(), crypto.randomUUID());
}

async function save() {
  savedAt = performance.now();
  current.updatedAt = Date.now();
  if (!listed.some((it) => it.id === current.id)) listed.unshift(current);
  drawList();
  try {
    await store.save(structuredClone(current));
  } catch {
    say("This browser keeps no conversations: its storage is full or closed.");
  }
}

async function begin() {
  await stop();
  typing.withdraw();
  current = fresh();
  editing = null;
  forgetRenderings();
  closeSide();
  draw();
  drawList();
  byId("draft").focus();
}

async function open(id) {
  await stop();
  typing.withdraw();
  current = listed.find((it) => it.id === id) ?? fresh();
  editing = null;
  isAtEnd = true;
  forgetRenderings();
  closeSide();
  draw();
  drawList();
  proceed();
}

async function drop(id) {
  if (id === current.id) await stop();
  listed = listed.filter((it) => it.id !== id);
  await store.remove(id);
  if (id === current.id) await begin();
  else drawList();
  say("Deleted.");
}

/** A reply that was under way when the page was closed is continued: the edge still has it, or
 * computes the same text again. */
function proceed() {
  const last = conversations.path(current).at(-1);
  if (!last?.pending) return;
  const { request, at, lastId } = last.pending;
  if (Date.now() - at > PENDING_MS) {
    delete last.pending;
    last.note = "This reply was cut off when the page was closed.";
    draw();
    return;
  }
  run(last, { ...request, lastEventId: lastId });
}

// Chats.

function requestFor(leaf) {
  return {
    model: byId("model").value || undefined,
    messages: conversations.asked(current, leaf, settings.system),
    sampling: settingsStore.samplingOf(settings),
    speculation: settings.speculation,
    provisional: settings.provisional,
    thinking: settings.thinking || undefined,
    tools: settingsStore.toolsOf(settings),
    addedRttMs: addedRttMs() || undefined,
    idempotencyKey: crypto.randomUUID(),
  };
}

async function send(text) {
  if (!text.trim() || live) return;
  const ahead = typing.sent();
  conversations.add(current, message("user", current.leaf, { content: text }));
  isAtEnd = true;
  await reply(current.leaf, ahead);
}

async function reply(parent, ahead = null) {
  const request = requestFor(parent);
  if (ahead) {
    request.typingId = ahead.id;
    if (request.sampling.seed === undefined && ahead.seed !== null) request.sampling.seed = ahead.seed;
  }
  const made = conversations.add(current, message("assistant", parent, { content: "", pending: { request, at: Date.now(), lastId: "" } }));
  await run(made, request);
}

/** Answer what is in the message field, or else the last message, by plain streaming beside it. */
async function compare() {
  const draft = byId("draft").value.trim();
  const asked = conversations.path(current).findLast((it) => it.role === "user");
  if (live || !(draft || asked)) {
    say(live ? "A reply is under way." : "Write a message to compare.");
    if (!live) byId("draft").focus();
    return;
  }
  const request = requestFor(draft ? current.leaf : asked.id);
  if (draft) request.messages.push({ role: "user", content: draft });
  transport ??= await connect();
  await openSplit(transport, request, draft || asked.content);
}

function message(role, parent, rest) {
  return { id: crypto.randomUUID(), parent, role, at: Date.now(), ...rest };
}

async function run(reply, request) {
  const own = new LiveReply(reply, performance.now());
  live = own;
  say("Waiting for the reply.");
  draw();
  save();
  const watch = setInterval(() => own.isSilent(performance.now()) && redraw(), WATCH_MS);
  try {
    transport ??= await connect();
    own.lastAt = performance.now();
    for await (const event of transport.chat(request, { signal: own.controller.signal })) {
      const told = own.take(event);
      if (told) say(told);
      redraw();
      if (performance.now() - savedAt > SAVE_MS) save();
    }
    own.end(performance.now());
    measure();
    say(own.done?.finishReason === "cancelled" ? "Stopped." : `Reply: ${reply.content.slice(0, 2000)}`);
  } catch (error) {
    const isOurs = error instanceof ChatError;
    if (!isOurs) console.error(error);
    own.fail(isOurs ? error.message : "The page failed here. Reload it; the conversation is kept.");
    say(reply.error);
    if (isOurs && error.status === 401) askKey(credentials.key() ? error.message : "");
  } finally {
    clearInterval(watch);
    if (live === own) live = null;
    draw();
    save();
  }
}

async function stop() {
  const own = live;
  if (!own) return;
  own.controller.abort();
  while (live === own) await new Promise((resolve) => setTimeout(resolve, 10));
}

const actions = {
  edit(id) {
    editing = id;
    draw();
    const field = document.querySelector(".editor textarea");
    if (field) {
      field.focus();
      field.setSelectionRange(field.value.length, field.value.length);
    } else byId("draft").focus();
  },
  edited(id, text) {
    if (!text.trim() || live) return;
    editing = null;
    conversations.add(current, message("user", current.nodes[id].parent, { content: text }));
    isAtEnd = true;
    reply(current.leaf);
    byId("draft").focus();
  },
  retry(id) {
    if (live) return;
    isAtEnd = true;
    reply(current.nodes[id].parent);
  },
  show(id) {
    conversations.show(current, id);
    draw();
    save();
  },
  copy(id, button) {
    copyText(current.nodes[id].content, button);
  },
  answered(id, call, text) {
    if (live) return;
    conversations.add(current, message("tool", id, { content: text, callId: call.id, name: call.name }));
    const calls = current.nodes[id].calls ?? [];
    const answered = conversations.path(current).filter((it) => it.role === "tool" && calls.some((one) => one.id === it.callId));
    if (answered.length >= calls.length) reply(current.leaf);
    else draw();
  },
};

// The edge.

async function askModels() {
  if (!credentials.key() && document.documentElement.dataset.key === "needed") {
    askKey("");
    return;
  }
  try {
    const answer = await fetch("v1/models", { headers: credentials.headers() });
    if (answer.status === 401 || answer.status === 403) {
      askKey(credentials.key() ? "This edge does not take that key." : "");
      return;
    }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    models = (await answer.json()).data.filter((it) => it.max_tokens !== null || it.default_max_tokens !== undefined);
    drawModels();
  } catch {
    say("The edge does not answer; its models are unknown.");
  }
}

function drawModels() {
  const select = byId("model");
  fill(select, models.map((it) => h("option", { key: it.id, value: it.id }, it.id)));
  if (models.some((it) => it.id === settings.model)) select.value = settings.model;
  select.hidden = models.length === 0;
}

async function measure() {
  try {
    const name = new URL("ui", location.href).href;
    performance.clearResourceTimings();
    await fetch(name, { method: "HEAD", cache: "no-store" });
    await new Promise((resolve) => setTimeout(resolve, 100)); // its times come a little later
    const [entry] = performance.getEntriesByName(name).slice(-1);
    if (!entry?.responseStart) return;
    const took = entry.responseStart - entry.requestStart;
    toEdgeMs = toEdgeMs === null ? took : Math.min(toEdgeMs, took);
    redraw();
  } catch {
    // It stays unknown.
  }
}

// Dialogs.

function askKey(why) {
  byId("key").value = "";
  byId("key-problem").textContent = why;
  byId("key-remember").checked = credentials.isRemembered();
  byId("key-forget").hidden = !credentials.key();
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
  byId("key").focus();
}

function openSettings() {
  for (const name of ["system", "temperature", "top_p", "top_k", "max_tokens", "seed", "thinking", "speculation", "tools"]) {
    byId(name).value = settings[name];
  }
  for (const name of ["provisional", "coloured"]) byId(name).checked = settings[name];
  byId("theme").value = theme();
  byId("settings-problem").textContent = "";
  byId("settings").showModal();
}

function closeSettings(event) {
  const stated = { ...settings };
  for (const name of ["system", "temperature", "top_p", "top_k", "max_tokens", "seed", "thinking", "speculation", "tools"]) {
    stated[name] = byId(name).value;
  }
  for (const name of ["provisional", "coloured"]) stated[name] = byId(name).checked;
  const found = settingsStore.problem(stated);
  if (found) {
    event.preventDefault();
    byId("settings-problem").textContent = found.text;
    byId(found.name).focus();
    return;
  }
  Object.assign(settings, stated);
  settingsStore.keep(settings);
  if (THEMES.includes(byId("theme").value)) setTheme(byId("theme").value);
  typing.withdraw();
  draw();
}

function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function fileName(ending) {
  const bare = (current.title || "conversation").toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-");
  return `${bare.slice(0, 40).replace(/^-|-$/g, "") || "conversation"}.${ending}`;
}

function showMenu(isShown) {
  byId("export-menu").hidden = !isShown;
  byId("export").setAttribute("aria-expanded", String(isShown));
  if (isShown) byId("export-markdown").focus();
}

function setSide(isShown) {
  settings.side = isShown;
  byId("shell").classList.toggle("with-side", isShown);
  byId("toggle-side").setAttribute("aria-expanded", String(isShown));
  byId("scrim").hidden = !(NARROW.matches && (isShown || settings.panel));
}

function setPanel(isShown) {
  settings.panel = isShown;
  draw();
  byId("scrim").hidden = !(NARROW.matches && (isShown || settings.side));
}

function closeSide() {
  if (NARROW.matches) setSide(false);
}

function lastOf(role) {
  return conversations.path(current).filter((it) => it.role === role).at(-1);
}

function sized() {
  const field = byId("draft");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, 240)}px`;
}

// What people do.

function listen() {
  const draft = byId("draft");
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = draft.value;
    if (!text.trim() || live) return;
    draft.value = "";
    sized();
    send(text);
  });
  draft.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      byId("composer").requestSubmit();
    } else if (event.key === "ArrowUp" && !draft.value && !live && lastOf("user")) {
      event.preventDefault();
      actions.edit(lastOf("user").id);
    }
  });
  draft.addEventListener("input", () => {
    sized();
    if (!live) typing.typed(draft.value);
  });
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") {
      if (!byId("export-menu").hidden) {
        showMenu(false);
        byId("export").focus();
      } else if (live) stop();
      else if (NARROW.matches) {
        setSide(false);
        setPanel(false);
      }
      return;
    }
    if (!event.altKey || event.ctrlKey || event.metaKey) return;
    const last = lastOf("assistant");
    const act = {
      KeyN: begin,
      KeyR: () => last && actions.retry(last.id),
      KeyC: () => last && navigator.clipboard.writeText(last.content).then(() => say("Copied.")),
      KeyI: () => setPanel(!settings.panel),
      KeyK: () => byId("keys").showModal(),
    }[event.code];
    if (!act) return;
    event.preventDefault();
    act();
  });
  byId("stop").addEventListener("click", () => stop().then(() => draft.focus()));
  byId("new").addEventListener("click", begin);
  byId("toggle-side").addEventListener("click", () => setSide(!byId("shell").classList.contains("with-side")));
  byId("toggle-panel").addEventListener("click", () => {
    setPanel(!settings.panel);
    settingsStore.keep(settings);
  });
  byId("scrim").addEventListener("click", () => {
    setSide(false);
    setPanel(false);
  });
  byId("open-settings").addEventListener("click", openSettings);
  byId("open-keys").addEventListener("click", () => byId("keys").showModal());
  byId("settings-form").addEventListener("submit", closeSettings);
  byId("change-key").addEventListener("click", () => askKey(""));
  byId("delete-all").addEventListener("click", async () => {
    const button = byId("delete-all");
    if (button.dataset.sure !== "yes") {
      button.dataset.sure = "yes";
      button.textContent = "Really delete all?";
      return;
    }
    delete button.dataset.sure;
    button.textContent = "Delete all conversations";
    await stop();
    listed = [];
    await store.clear();
    byId("settings").close();
    await begin();
    say("All conversations are deleted.");
  });
  byId("key-form").addEventListener("submit", (event) => {
    const stated = byId("key").value.trim();
    if (!stated) {
      event.preventDefault();
      byId("key-problem").textContent = "Enter a key.";
      return;
    }
    credentials.setKey(stated, { remember: byId("key-remember").checked });
    askModels();
    draft.focus();
  });
  byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
  byId("key-forget").addEventListener("click", () => {
    credentials.setKey("");
    byId("key-dialog").close();
  });
  byId("model").addEventListener("change", () => {
    settings.model = byId("model").value;
    settingsStore.keep(settings);
    typing.withdraw();
  });
  byId("export").addEventListener("click", () => showMenu(byId("export-menu").hidden));
  byId("export-menu").addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    const items = [...byId("export-menu").children];
    items[(items.indexOf(document.activeElement) + 1) % items.length].focus();
  });
  document.addEventListener("click", (event) => {
    if (!event.target.closest(".menu-place")) showMenu(false);
  });
  byId("export-markdown").addEventListener("click", () => {
    download(fileName("md"), "text/markdown", conversations.toMarkdown(current));
    showMenu(false);
  });
  byId("export-json").addEventListener("click", () => {
    download(fileName("json"), "application/json", conversations.toJson(current));
    showMenu(false);
  });
  byId("ahead").addEventListener("change", () => {
    settings.ahead = byId("ahead").checked;
    settingsStore.keep(settings);
    typing.agree(settings.ahead);
    if (settings.ahead && draft.value) typing.typed(draft.value);
  });
  mountDistance(byId("distance"));
  byId("compare").addEventListener("click", compare);
  byId("ahead-why").addEventListener("click", () => byId("ahead-dialog").showModal());
  const scroll = byId("scroll");
  scroll.addEventListener("scroll", () => {
    isAtEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 40;
    byId("to-end").hidden = isAtEnd;
  });
  byId("to-end").addEventListener("click", () => {
    isAtEnd = true;
    scroll.scrollTop = scroll.scrollHeight;
  });
  addEventListener("pagehide", () => {
    if (live) store.save(structuredClone(current));
    typing.withdraw();
  });
  NARROW.addEventListener("change", () => setSide(!NARROW.matches));
}

async function start() {
  fill(byId("keys-list"), KEYS.map(([keys, what]) => [h("dt", {}, h("kbd", {}, keys)), h("dd", {}, what)]));
  byId("empty").textContent = "Ask something. What the edge can guess is on screen before the datacenter has answered; what it got wrong is corrected in place.";
  listen();
  byId("ahead-label").hidden = byId("ahead-why").hidden = false;
  byId("ahead").checked = settings.ahead;
  typing.agree(settings.ahead);
  if (NARROW.matches) settings.panel = false;
  setSide(!NARROW.matches && settings.side);
  draw();
  byId("draft").focus();
  listed = await store.all().catch(() => []);
  drawList();
  await askModels();
  measure();
  const newest = listed[0];
  if (newest && conversations.path(newest).at(-1)?.pending) await open(newest.id);
}

start();
