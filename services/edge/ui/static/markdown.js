// Markdown as models write it, to a tree. Pure. Every piece of text knows where it stands in the
// source, so that what is a guess can be shown as one. HTML is text, pictures are links: nothing that
// a model writes is markup or is fetched.
//
// Blocks: {type: paragraph | heading | code | quote | list | table | rule, begin, end, ...}
// Inline: {type: text, text, at} | {type: strong | em | del | code | link | break, children, href?}

const MAX_DEPTH = 8;
const MAX_INLINE = 20_000;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+|$)/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const QUOTE = /^ {0,3}> ?/;
const DELIMITER_ROW = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;
const BARE_LINK = /^https?:\/\/[^\s<>"'`]+[^\s<>"'`.,:;!?)\]}*_]/i;

/** The blocks of a text. `open`: more of it may come, so an unclosed mark at the end is as closed. */
export function parse(source, { open = false } = {}) {
  return blocksOf(linesOf(source), 0, open);
}

function linesOf(source) {
  const lines = [];
  let at = 0;
  for (const text of source.split("\n")) {
    lines.push({ text: text.replace(/\r$/, ""), at });
    at += text.length + 1;
  }
  return lines;
}

function drop(line, count) {
  return { text: line.text.slice(count), at: line.at + Math.min(count, line.text.length) };
}

function isBlank(line) {
  return line.text.trim() === "";
}

function begins(line) {
  return FENCE.test(line.text) || HEADING.test(line.text) || RULE.test(line.text) || QUOTE.test(line.text);
}

function blocksOf(lines, depth, open) {
  const blocks = [];
  let row = 0;
  while (row < lines.length) {
    const line = lines[row];
    if (isBlank(line)) {
      row++;
      continue;
    }
    const [block, next] = blockAt(lines, row, depth, open);
    block.begin = line.at;
    const last = lines[next - 1];
    block.end = last.at + last.text.length;
    blocks.push(block);
    row = next;
  }
  return blocks;
}

function blockAt(lines, row, depth, open) {
  const line = lines[row];
  const fence = FENCE.exec(line.text);
  if (fence) return codeAt(lines, row, fence);
  const heading = HEADING.exec(line.text);
  if (heading) {
    const bare = drop(line, heading[0].length);
    bare.text = bare.text.replace(/\s+#+\s*$/, "");
    return [{ type: "heading", level: heading[1].length, children: inline([bare], open) }, row + 1];
  }
  if (RULE.test(line.text)) return [{ type: "rule" }, row + 1];
  if (depth < MAX_DEPTH && QUOTE.test(line.text)) return quoteAt(lines, row, depth, open);
  if (depth < MAX_DEPTH && ITEM.test(line.text)) return listAt(lines, row, depth, open);
  if (isTable(lines, row)) return tableAt(lines, row, open);
  return paragraphAt(lines, row, open);
}

function codeAt(lines, row, fence) {
  const close = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
  let end = row + 1;
  while (end < lines.length && !close.test(lines[end].text)) end++;
  const inner = lines.slice(row + 1, end);
  const text = inner.map((it) => it.text).join("\n");
  const at = inner.length ? inner[0].at : lines[row].at + lines[row].text.length;
  const block = { type: "code", language: fence[2].trim().split(/\s/)[0], lines: inner, text, at };
  return [block, Math.min(end + 1, lines.length)];
}

function quoteAt(lines, row, depth, open) {
  let end = row;
  while (end < lines.length && QUOTE.test(lines[end].text)) end++;
  const inner = lines.slice(row, end).map((it) => drop(it, QUOTE.exec(it.text)[0].length));
  return [{ type: "quote", children: blocksOf(inner, depth + 1, open && end === lines.length) }, end];
}

function listAt(lines, row, depth, open) {
  const first = ITEM.exec(lines[row].text);
  const ordered = /\d/.test(first[2]);
  const list = { type: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items: [], tight: true };
  let at = row;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at].text);
    if (!item || /\d/.test(item[2]) !== ordered || RULE.test(lines[at].text)) break;
    if (!ordered && item[2] !== first[2]) break;
    const indent = item[1].length + item[2].length + Math.min(Math.max(item[3].length, 1), 4);
    const inner = [drop(lines[at], Math.min(indent, lines[at].text.length))];
    let end = at + 1;
    let blanks = 0;
    for (; end < lines.length; end++) {
      const line = lines[end];
      const spaces = /^ */.exec(line.text)[0].length;
      if (isBlank(line)) {
        blanks++;
        inner.push(drop(line, spaces));
      } else if (spaces >= Math.min(indent, 2) && (spaces >= indent || !ITEM.test(line.text.slice(0, 8)) || spaces > item[1].length + 1)) {
        inner.push(drop(line, Math.min(spaces, indent)));
        blanks = 0;
      } else if (!blanks && !ITEM.test(line.text) && !begins(line)) {
        inner.push(line);
      } else break;
    }
    const isLast = end - blanks >= lines.length || end >= lines.length;
    if (blanks && !isLast && ITEM.test(lines[end].text)) list.tight = false;
    list.items.push(blocksOf(inner, depth + 1, open && isLast));
    at = end;
  }
  while (at > row + 1 && isBlank(lines[at - 1])) at--;
  return [list, at];
}

function isTable(lines, row) {
  const next = lines[row + 1];
  return lines[row].text.includes("|") && next !== undefined && next.text.includes("-") && DELIMITER_ROW.test(next.text);
}

function tableAt(lines, row, open) {
  let end = row + 2;
  while (end < lines.length && lines[end].text.includes("|") && !isBlank(lines[end])) end++;
  const cells = (line, isOpen) => cellsOf(line).map((it) => inline([it], isOpen));
  const align = cellsOf(lines[row + 1]).map(({ text }) =>
    text.endsWith(":") ? (text.startsWith(":") ? "center" : "right") : "left",
  );
  const rows = lines.slice(row + 2, end).map((it, number) => cells(it, open && row + 3 + number === lines.length));
  return [{ type: "table", head: cells(lines[row], false), align, rows }, end];
}

function cellsOf(line) {
  const cells = [];
  let begin = /^\s*\|?/.exec(line.text)[0].length;
  for (let at = begin; at <= line.text.length; at++) {
    if (line.text[at] === "\\") at++;
    else if (at === line.text.length || line.text[at] === "|") {
      if (at === line.text.length && !line.text.slice(begin).trim()) break;
      const cell = line.text.slice(begin, at);
      const lead = cell.length - cell.trimStart().length;
      cells.push({ text: cell.trim(), at: line.at + begin + lead });
      begin = at + 1;
    }
  }
  return cells;
}

function paragraphAt(lines, row, open) {
  let end = row + 1;
  while (end < lines.length && !isBlank(lines[end]) && !begins(lines[end]) && !ITEM.test(lines[end].text)) end++;
  const inner = lines.slice(row, end).map((it) => drop(it, /^\s*/.exec(it.text)[0].length));
  return [{ type: "paragraph", children: inline(inner, open && end === lines.length) }, end];
}

/** The inline tree of lines. */
function inline(lines, open) {
  const text = lines.map((it) => it.text).join("\n");
  if (text.length > MAX_INLINE) return lines.flatMap((it) => [{ type: "text", text: it.text, at: it.at }, { type: "break" }]);
  const starts = [];
  let offset = 0;
  for (const line of lines) {
    starts.push({ offset, at: line.at });
    offset += line.text.length + 1;
  }
  return new Inline(text, starts, open).all();
}

class Inline {
  #without = new Set();

  constructor(text, starts, open) {
    this.text = text;
    this.starts = starts;
    this.open = open;
  }

  all() {
    return this.range(0, this.text.length, 0);
  }

  range(begin, end, depth) {
    const nodes = [];
    let plain = begin;
    let at = begin;
    const flush = (to) => this.plain(nodes, plain, to);
    while (at < end) {
      const found = depth < MAX_DEPTH ? this.mark(at, end, depth) : null;
      if (found) {
        flush(at);
        nodes.push(...found.nodes);
        at = plain = found.end;
      } else at++;
    }
    flush(end);
    return nodes;
  }

  /** Text as it is, broken where the source has a line's end. */
  plain(nodes, begin, end) {
    for (let at = begin; at < end; ) {
      const line = this.text.indexOf("\n", at);
      const to = line === -1 || line >= end ? end : line;
      const hard = to < end && /(?: {2,}|\\)$/.exec(this.text.slice(at, to));
      const stop = hard ? to - hard[0].length : to;
      if (stop > at) nodes.push({ type: "text", text: this.text.slice(at, stop), at: this.source(at) });
      if (to < end) nodes.push(hard ? { type: "break" } : { type: "text", text: "\n", at: this.source(to) });
      at = to + 1;
    }
  }

  source(offset) {
    let line = this.starts[0];
    for (const it of this.starts) if (it.offset <= offset) line = it;
    return line.at + offset - line.offset;
  }

  mark(at, end, depth) {
    const char = this.text[at];
    switch (char) {
      case "\\":
        if (at + 1 < end && /[!-/:-@[-`{-~]/.test(this.text[at + 1])) {
          return { nodes: [{ type: "text", text: this.text[at + 1], at: this.source(at + 1) }], end: at + 2 };
        }
        return null;
      case "`":
        return this.code(at, end);
      case "*":
      case "_":
      case "~":
        return this.emphasis(at, end, depth);
      case "!":
        return this.text[at + 1] === "[" ? this.link(at + 1, end, depth) : null;
      case "[":
        return this.link(at, end, depth);
      case "<":
      case "h":
      case "H":
        return this.address(at, end);
      default:
        return null;
    }
  }

  code(at, end) {
    const ticks = /^`+/.exec(this.text.slice(at, end))[0];
    for (let close = at + ticks.length; ; close++) {
      close = this.text.indexOf(ticks, close);
      if (close === -1 || close >= end) break;
      let run = ticks.length;
      while (this.text[close + run] === "`") run++;
      if (run === ticks.length) return this.codeNode(at + run, close, close + run);
      close += run - 1;
    }
    if (this.open && end === this.text.length && at + ticks.length < end && ticks.length === 1) {
      return this.codeNode(at + 1, end, end);
    }
    this.#none(ticks);
    return { nodes: [{ type: "text", text: ticks, at: this.source(at) }], end: at + ticks.length };
  }

  codeNode(begin, end, next) {
    const children = [];
    this.plain(children, begin, end);
    return { nodes: [{ type: "code", children }], end: next };
  }

  #none(mark) {
    this.#without.add(mark);
  }

  emphasis(at, end, depth) {
    const char = this.text[at];
    const isDouble = this.text[at + 1] === char;
    if (char === "~" && !isDouble) return null;
    const mark = isDouble ? char + char : char;
    const inner = at + mark.length;
    const after = this.text[inner];
    if (inner >= end || after === undefined || /\s/.test(after)) return null;
    if (char === "_" && at > 0 && /[\p{L}\p{N}]/u.test(this.text[at - 1])) return null;
    const key = `${mark}:${end}`;
    if (this.#without.has(key)) return null;
    const close = this.closing(mark, inner, end);
    if (close === -1) {
      if (this.open && end === this.text.length && mark !== "_") {
        const children = this.range(inner, end, depth + 1);
        return { nodes: [{ type: typeOf(mark), children }], end };
      }
      this.#without.add(key);
      return null;
    }
    const children = this.range(inner, close, depth + 1);
    return { nodes: [{ type: typeOf(mark), children }], end: close + mark.length };
  }

  closing(mark, from, end) {
    const char = mark[0];
    for (let at = from; at < end; at++) {
      const it = this.text[at];
      if (it === "\\") at++;
      else if (it === "`") {
        const close = this.text.indexOf("`", at + 1);
        if (close !== -1 && close < end) at = close;
      } else if (it === char) {
        let run = 1;
        while (this.text[at + run] === char && at + run < end) run++;
        const isRight = at > from && !/\s/.test(this.text[at - 1]);
        const fits = run === mark.length || run === 3;
        const isWord = char === "_" && /[\p{L}\p{N}]/u.test(this.text[at + run] ?? "");
        if (isRight && fits && !isWord) return run === 3 && mark.length === 1 ? at + 2 : at;
        at += run - 1;
      }
    }
    return -1;
  }

  link(at, end, depth) {
    let level = 0;
    let close = at;
    for (; close < end; close++) {
      if (this.text[close] === "\\") close++;
      else if (this.text[close] === "[") level++;
      else if (this.text[close] === "]" && --level === 0) break;
      if (close - at > 2000) return null;
    }
    if (close >= end || this.text[close + 1] !== "(") return null;
    const target = /^\(\s*<?([^\s<>()]*(?:\([^\s()]*\)[^\s<>()]*)*)>?(?:\s+["'(][^\n]*?["')])?\s*\)/.exec(
      this.text.slice(close + 1, Math.min(end, close + 2100)),
    );
    if (!target) return null;
    const children = this.range(at + 1, close, depth + 1);
    const next = close + 1 + target[0].length;
    if (!SAFE_LINK.test(target[1])) return { nodes: children, end: next };
    return { nodes: [{ type: "link", href: target[1], children }], end: next };
  }

  address(at, end) {
    if (at > 0 && /[\p{L}\p{N}]/u.test(this.text[at - 1])) return null;
    const isBracketed = this.text[at] === "<";
    const from = isBracketed ? at + 1 : at;
    const rest = this.text.slice(from, Math.min(end, from + 2000));
    const found = isBracketed ? /^https?:\/\/[^\s<>]+(?=>)/i.exec(rest) : BARE_LINK.exec(rest);
    if (!found) return null;
    const children = [{ type: "text", text: found[0], at: this.source(from) }];
    const next = from + found[0].length + (isBracketed ? 1 : 0);
    return { nodes: [{ type: "link", href: found[0], children }], end: next };
  }
}

function typeOf(mark) {
  return mark === "~~" ? "del" : mark.length === 2 ? "strong" : "em";
}
