// Tells the reasoning at the beginning of a reply from its answer, in text that comes in pieces.
// Pure. The tags are no part of either, nor are line breaks beside them.

/** `format`: {reasons, beginsInReasoning, tags: [open, close]}, or undefined for a model that does
 * not reason. */
export class ReasoningSplitter {
  #state;
  #held = "";
  #tags;

  /** `state`: of an earlier splitter of this reply, which held nothing. */
  constructor(format, state) {
    this.#tags = format?.tags ?? [];
    const first = !format?.reasons ? "answer" : format.beginsInReasoning ? "thought" : "open?";
    this.#state = state ?? first;
  }

  get state() {
    return this.#state;
  }

  /** Whether some text that came is not told yet. */
  get holds() {
    return this.#held !== "";
  }

  /** Whether all further text is the answer's, and some of it has come. */
  get isAnswering() {
    return this.#state === "answer";
  }

  /** {reasoning, answer}: what more of the text is known to be. */
  read(text) {
    const found = { reasoning: "", answer: "" };
    this.#held += text;
    if (this.#state === "open?") this.#open();
    if (this.#state === "thought") found.reasoning = this.#thought();
    if (this.#state === "gap") this.#gap();
    if (this.#state === "answer") {
      found.answer = this.#held;
      this.#held = "";
    }
    return found;
  }

  /** What is left at the end of the reply. */
  end() {
    const held = this.#held;
    this.#held = "";
    return this.#state === "thought"
      ? { reasoning: held.trimEnd(), answer: "" }
      : { reasoning: "", answer: this.#state === "gap" ? "" : held };
  }

  #open() {
    const begun = this.#held.trimStart();
    const open = this.#tags[0];
    if (begun.startsWith(open)) {
      this.#held = begun.slice(open.length);
      this.#state = "thought";
    } else if (!open.startsWith(begun)) {
      this.#state = "answer";
    }
  }

  #thought() {
    const close = this.#tags[1];
    const end = this.#held.indexOf(close);
    const sure = end >= 0 ? end : this.#held.length - overlap(this.#held, close);
    const thought = this.#held.slice(0, sure);
    const told = thought.replace(/\n+$/, "");
    if (end >= 0) {
      this.#held = this.#held.slice(end + close.length);
      this.#state = "gap";
    } else {
      this.#held = this.#held.slice(told.length);
    }
    return told;
  }

  #gap() {
    this.#held = this.#held.replace(/^\n+/, "");
    if (this.#held) this.#state = "answer";
  }
}

/** How much of the end of `text` may be the beginning of `tag`. */
function overlap(text, tag) {
  for (let size = Math.min(text.length, tag.length - 1); size > 0; size--) {
    if (tag.startsWith(text.slice(-size))) return size;
  }
  return 0;
}
