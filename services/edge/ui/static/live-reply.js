// A reply that is being written: what the events of its chat make of the message that is kept, and
// what people are told in the quiet line below it. Pure.

import { broughtBy } from "./brought.js";
import { Front } from "./front.js";
import { ms } from "./times.js";

const SILENCE_MS = 1200;
const TEXTS = new Set(["committed", "reasoning", "tool"]);

export class LiveReply {
  controller = new AbortController();
  front = new Front();
  usage = null;
  done = null;
  lastAt = 0;
  #isCut = false;
  #isSilent = false;
  #thinksSince = null;

  /** `message`: what is kept of the reply, perhaps with the beginning that an earlier page had. */
  constructor(message, sentAt) {
    this.message = message;
    this.sentAt = sentAt;
    this.lastAt = sentAt;
    this.front.final = message.content;
    this.front.marks = message.marks ?? [];
  }

  /** Take an event (transport.js). Returns what is to be said to who does not see the page. */
  take(event) {
    const { message, front } = this;
    if (TEXTS.has(event.type)) {
      this.#forgetSilence();
      this.lastAt = event.at;
    }
    if (event.eventId && message.pending) message.pending.lastId = event.eventId;
    switch (event.type) {
      case "opened":
        message.model = event.model;
        if (event.seed !== undefined) message.seed = event.seed;
        break;
      case "provisional":
        front.provisional(event);
        break;
      case "committed":
        if (message.reasoning && !message.thoughtMs) message.thoughtMs = event.at - this.#thinksSince;
        front.commit(event);
        this.#keepText();
        break;
      case "reasoning":
        this.#thinksSince ??= event.at;
        message.reasoning = (message.reasoning ?? "") + event.text;
        break;
      case "tool":
        this.#takeCall(event);
        break;
      case "interrupted":
        this.#forgetSilence();
        this.#isCut = true;
        return (message.note = "The connection was lost; trying again.");
      case "resumed":
        this.#isCut = false;
        return (message.note = `The connection was lost for ${ms(event.afterMs)}. Nothing is missing.`);
      case "moved":
        message.note = moveNote(1, event.region);
        break;
      case "usage":
        this.usage = event;
        break;
      case "done":
        this.done = event;
        break;
      default:
    }
    return "";
  }

  /** Whether nothing has come for a while, which is then said, once. */
  isSilent(now) {
    const { message, front } = this;
    if (!front.final || message.note || now - this.lastAt <= SILENCE_MS) return false;
    this.#isSilent = true;
    message.note = "No word for a moment; the text so far is safe.";
    return true;
  }

  /** Nothing follows. */
  end(now) {
    const { message, front, done } = this;
    this.#forgetSilence();
    this.#close();
    if (done?.moves) {
      message.note = moveNote(done.moves, done.region);
      if (done.inexact) message.note += " It computes otherwise, so the rest may differ from what one would have written.";
    }
    const reason = REASONS[done?.finishReason];
    if (reason) message.note = message.note ? `${message.note} ${reason}` : reason;
    message.brought = broughtBy(front, { sentAt: this.sentAt, endedAt: done?.at ?? now, done, usage: this.usage });
    if (done?.seed !== undefined) message.seed = done.seed;
  }

  /** It failed, for this reason. */
  fail(reason) {
    if (this.#isCut) this.message.note = "";
    this.#forgetSilence();
    this.#close();
    this.message.error = reason;
  }

  #close() {
    delete this.message.pending;
    this.front.end();
    this.#keepText();
  }

  #keepText() {
    this.message.content = this.front.final;
    this.message.marks = this.front.marks;
  }

  #forgetSilence() {
    if (this.#isSilent) this.message.note = "";
    this.#isSilent = false;
  }

  #takeCall({ index, id, name, arguments: more }) {
    const calls = (this.message.calls ??= []);
    let call = calls.find((it) => it.index === index);
    if (!call) calls.push((call = { index, id: "", name: "", arguments: "" }));
    call.id ||= id ?? "";
    call.name ||= name ?? "";
    call.arguments += more;
  }
}

const REASONS = {
  length: "The reply reached its limit of tokens.",
  deadline: "The reply reached its deadline.",
  cancelled: "You stopped it here.",
};

function moveNote(moves, region) {
  const lost = moves === 1 ? "A server was lost" : `${moves} servers were lost`;
  return `${lost} while this was written. Another${region ? ` in ${region}` : ""} continued; no word is missing.`;
}
