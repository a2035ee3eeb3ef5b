// Markdown trees as descriptions of elements. Ranges of the source get classes: guesses, text that
// was shown early, text that was corrected.

import { h } from "./dom.js";
import { parse } from "./markdown.js";

/** Descriptions of a text's blocks; blocks that did not change are those of `before`. `ranges`: sorted
 * {begin, end, kind} of the source. */
export class Rendering {
  #known = new Map();

  blocks(source, ranges, { open = false } = {}) {
    const known = new Map();
    const blocks = parse(source, { open }).map((block, number) => {
      const own = ranges.filter((it) => it.begin < block.end + 1 && it.end > block.begin);
      const isLast = block.end >= source.length;
      const key = JSON.stringify([
        number,
        block.begin,
        source.slice(block.begin, block.end),
        open && isLast,
        own.map((it) => [it.begin, it.end, it.kind]),
      ]);
      const made = this.#known.get(key) ?? element(block, own, number);
      known.set(key, made);
      return made;
    });
    this.#known = known;
    return blocks;
  }
}

function element(block, ranges, key) {
  switch (block.type) {
    case "heading":
      // The page's own headings come before: the reply's begin at the third level.
      return h(`h${Math.min(6, block.level + 2)}`, { key }, inline(block.children, ranges));
    case "code":
      return code(block, ranges, key);
    case "quote":
      return h("blockquote", { key }, block.children.map((it, number) => element(it, ranges, number)));
    case "list":
      return list(block, ranges, key);
    case "table":
      return table(block, ranges, key);
    case "rule":
      return h("hr", { key });
    default:
      return h("p", { key }, inline(block.children, ranges));
  }
}

function list(block, ranges, key) {
  const items = block.items.map((blocks, number) =>
    h(
      "li",
      { key: number },
      blocks.map((it, inner) =>
        block.tight && it.type === "paragraph"
          ? h("span", { key: inner }, inline(it.children, ranges))
          : element(it, ranges, inner),
      ),
    ),
  );
  if (!block.ordered) return h("ul", { key }, items);
  return h("ol", { key, start: block.start === 1 ? undefined : block.start }, items);
}

function table({ head, align, rows }, ranges, key) {
  const cell = (tag) => (children, column) =>
    h(tag, { key: column, class: `to-${align[column] ?? "left"}` }, inline(children, ranges));
  return h(
    "div",
    { key, class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, head.map(cell("th")))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell("td"))))),
    ),
  );
}

function code(block, ranges, key) {
  const pieces = block.lines.flatMap((line, number) => [
    number ? "\n" : null,
    ...pieced(line.text, line.at, ranges),
  ]);
  return h(
    "figure",
    { key, class: "code" },
    h(
      "figcaption",
      {},
      h("span", {}, block.language || "text"),
      h("button", { class: "button-quiet", type: "button", onclick: copy }, "Copy"),
    ),
    h("pre", { tabindex: "0", role: "group", "aria-label": "Code" }, h("code", {}, pieces)),
  );
}

function inline(nodes, ranges) {
  return nodes.flatMap((it) => {
    switch (it.type) {
      case "text":
        return pieced(it.text, it.at, ranges);
      case "break":
        return h("br");
      case "link":
        return h(
          "a",
          { href: it.href, target: "_blank", rel: "noopener noreferrer nofollow" },
          inline(it.children, ranges),
        );
      default:
        return h(it.type, {}, inline(it.children, ranges));
    }
  });
}

/** A text, cut where ranges begin and end. */
function pieced(text, at, ranges) {
  const pieces = [];
  let from = 0;
  for (const { begin, end, kind } of ranges) {
    const first = Math.max(begin - at, from);
    const last = Math.min(end - at, text.length);
    if (last <= first) continue;
    if (first > from) pieces.push(text.slice(from, first));
    // Guesses are not read aloud: what is final is, once.
    const hidden = kind === "guess" ? "true" : undefined;
    const space = kind === "guess" ? /^\s*/.exec(text.slice(first, last))[0].length : 0;
    if (space) pieces.push(text.slice(first, first + space));
    if (first + space < last) {
      pieces.push(h("span", { class: kind, "aria-hidden": hidden }, text.slice(first + space, last)));
    }
    from = last;
  }
  if (from < text.length) pieces.push(text.slice(from));
  return pieces;
}

async function copy(event) {
  const button = event.currentTarget;
  const figure = button.closest("figure");
  await copyText(figure.querySelector("code").textContent, button);
}

/** Put a text on the clipboard; the button says so for a moment. */
export async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = label), 1500);
}
