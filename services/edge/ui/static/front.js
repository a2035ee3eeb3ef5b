// The text of a reply as it is shown: final text, and behind it text that is a guess. Pure.
//
// Offsets of marks count UTF-16 units of the final text, as JavaScript does; what the wire counts
// are code points.

/** How text came: "early" was shown before it was final, "sealed" was decoded before Enter. */
const EARLY = "early";
const SEALED = "sealed";
const FIXED = "fixed";

export class Front {
  final = "";
  /** Behind `final`: a guess. */
  guess = "";
  /** Sorted, apart: {begin, end, kind}. */
  marks = [];
  /** Final text that took the place of another guess: {begin, end, at}. */
  fixes = [];
  shownChars = 0;
  erasedChars = 0;
  earlyChars = 0;
  /** Sum over early characters of how long before their commit they were shown, in ms. */
  earlyMs = 0;
  firstShownAt = null;
  firstFinalAt = null;
  #shownAt = [];
  #wrong = 0;
  #firstWord = { text: "", since: null };

  get text() {
    return this.final + this.guess;
  }

  /** When the first word came that stayed. */
  get firstLastingAt() {
    return this.#firstWord.since;
  }

  /** Keep `eraseTo` code points of the guess, then append `text`. */
  provisional({ eraseTo, text, at }) {
    const keep = units(this.guess, eraseTo);
    const erased = this.guess.length - keep;
    this.erasedChars += erased;
    this.shownChars += text.length;
    this.#wrong = Math.max(this.#wrong, erased);
    this.guess = this.guess.slice(0, keep) + text;
    this.#shownAt.length = keep;
    for (let it = 0; it < text.length; it++) this.#shownAt.push(at);
    this.#shown(at);
  }

  /** `text` is final: it takes the place of as much of the guess. */
  commit({ text, at, sealed = 0, accepted = null }) {
    const begin = this.final.length;
    const same = commonLength(this.guess, text);
    if (same < Math.min(this.guess.length, text.length)) {
      this.erasedChars += this.guess.length - same;
      this.#wrong = this.guess.length - same;
      this.guess = "";
    }
    for (let it = 0; it < same; it++) this.earlyMs += at - this.#shownAt[it];
    this.earlyChars += same;
    this.final += text;
    this.guess = this.guess.slice(text.length);
    this.#shownAt.splice(0, Math.min(this.#shownAt.length, text.length));
    this.#shownAt.length = this.guess.length;
    if (this.#wrong && text.slice(same).trim()) {
      const from = wordBegin(this.final, begin + same);
      const to = Math.min(this.final.length, begin + same + this.#wrong);
      this.fixes.push({ begin: from, end: to, at });
      this.#wrong = 0;
    }
    if (sealed) this.#mark(begin, begin + units(text, sealed), SEALED);
    else if (accepted) {
      for (const [from, to] of accepted) {
        this.#mark(begin + units(text, from), begin + units(text, to), EARLY);
      }
    } else if (same) this.#mark(begin, begin + same, EARLY);
    this.firstFinalAt ??= at;
    this.#shown(at);
  }

  /** Nothing follows: what is still a guess was wrong. */
  end() {
    this.erasedChars += this.guess.length;
    this.guess = "";
    this.#shownAt.length = 0;
  }

  /** Ranges of `text` with their classes, to be shown at `now`: sorted, apart. */
  ranges(now, fixMs = 900) {
    const ranges = this.marks.map(({ begin, end, kind }) => ({ begin, end, kind }));
    this.fixes = this.fixes.filter((it) => now - it.at < fixMs);
    for (const fix of this.fixes) cut(ranges, { begin: fix.begin, end: fix.end, kind: FIXED });
    if (this.guess) {
      ranges.push({ begin: this.final.length, end: this.text.length, kind: "guess" });
    }
    return ranges;
  }

  #mark(begin, end, kind) {
    const last = this.marks.at(-1);
    if (last && last.end === begin && last.kind === kind) last.end = end;
    else if (end > begin) this.marks.push({ begin, end, kind });
  }

  #shown(at) {
    const word = /^\s*\S+/.exec(this.text)?.[0] ?? "";
    if (!word) {
      if (!this.final) this.#firstWord = { text: "", since: null };
      return;
    }
    this.firstShownAt ??= at;
    const known = this.#firstWord;
    // A word that grows is the same one; one that is replaced begins anew.
    const stays = known.since !== null && (word.startsWith(known.text) || known.text.startsWith(word));
    this.#firstWord = { text: word, since: stays ? known.since : at };
  }
}

/** UTF-16 units of the first `points` code points. */
export function units(text, points) {
  let at = 0;
  for (; points > 0 && at < text.length; points--) at += text.codePointAt(at) > 0xffff ? 2 : 1;
  return at;
}

function commonLength(one, other) {
  const most = Math.min(one.length, other.length);
  let same = 0;
  while (same < most && one[same] === other[same]) same++;
  // Not within a surrogate pair.
  return same > 0 && isHigh(one.charCodeAt(same - 1)) ? same - 1 : same;
}

function isHigh(code) {
  return code >= 0xd800 && code <= 0xdbff;
}

function wordBegin(text, at) {
  if (/\s/.test(text[at])) return at;
  while (at > 0 && !/\s/.test(text[at - 1])) at--;
  return at;
}

/** Put a range among sorted ones, in front of what it overlaps. */
function cut(ranges, range) {
  const kept = [];
  for (const it of ranges) {
    if (it.begin < range.begin) kept.push({ ...it, end: Math.min(it.end, range.begin) });
    if (it.end > range.end) kept.push({ ...it, begin: Math.max(it.begin, range.end) });
  }
  kept.push(range);
  kept.sort((one, other) => one.begin - other.begin);
  ranges.splice(0, ranges.length, ...kept.filter((it) => it.end > it.begin));
}
