// Markdown as the page reads it.

import assert from "node:assert/strict";
import { test } from "node:test";

import { parse } from "../../../services/edge/ui/static/markdown.js";

/** A tree in short: text as it is, marks around it. */
function short(nodes) {
  return nodes
    .map((it) => {
      if (it.type === "text") return it.text;
      if (it.type === "break") return "⏎";
      const inner = short(it.children);
      return it.type === "link" ? `<${it.href}|${inner}>` : `<${it.type}|${inner}>`;
    })
    .join("");
}

function paragraph(text, options) {
  const [block] = parse(text, options);
  assert.equal(block.type, "paragraph");
  return short(block.children);
}

test("emphasis, code and links", () => {
  assert.equal(paragraph("a **b** *c* `d*e*` ~~f~~"), "a <strong|b> <em|c> <code|d*e*> <del|f>");
  assert.equal(paragraph("**a *b* c**"), "<strong|a <em|b> c>");
  assert.equal(paragraph("snake_case_name and 2 * 3 * 4"), "snake_case_name and 2 * 3 * 4");
  assert.equal(paragraph("[x](https://a.example/b_(c))"), "<https://a.example/b_(c)|x>");
  assert.equal(paragraph("see https://a.example/b."), "see <https://a.example/b|https://a.example/b>.");
  assert.equal(paragraph("\\*not\\*"), "*not*");
});

test("nothing that a model writes is markup, code or fetched", () => {
  assert.equal(paragraph("<img src=x onerror=alert(1)>"), "<img src=x onerror=alert(1)>");
  assert.equal(paragraph("[x](javascript:alert(1))"), "x");
  assert.equal(paragraph("[x](data:text/html,y)"), "x");
  assert.equal(paragraph("![x](https://a.example/b.png)"), "<https://a.example/b.png|x>");
});

test("blocks", () => {
  const kinds = (text) => parse(text).map((it) => it.type);
  assert.deepEqual(kinds("# a\n\nb\n\n- c\n- d\n\n> e\n\n---\n\n```py\nf\n```\n"), [
    "heading",
    "paragraph",
    "list",
    "quote",
    "rule",
    "code",
  ]);
  const [list] = parse("1. a\n   - b\n   - c\n2. d");
  assert.equal(list.items.length, 2);
  assert.equal(list.items[0][1].items.length, 2);
  const [, after] = parse("- a\n\nb");
  assert.equal(after.type, "paragraph");
  const [table] = parse("| a | b |\n|--:|:-:|\n| 1 | **2** |");
  assert.deepEqual(table.align, ["right", "center"]);
  assert.equal(short(table.rows[0][1]), "<strong|2>");
});

test("what is not closed yet looks closed while more may come", () => {
  assert.equal(paragraph("a **b", { open: true }), "a <strong|b>");
  assert.equal(paragraph("a **b"), "a **b");
  assert.equal(paragraph("a `b", { open: true }), "a <code|b>");
  const [code] = parse("```js\nlet x", { open: true });
  assert.deepEqual([code.type, code.language, code.text], ["code", "js", "let x"]);
});

/** All texts of a tree. */
function texts(value) {
  if (Array.isArray(value)) return value.flatMap(texts);
  if (value === null || typeof value !== "object") return [];
  if (value.type === "text") return [value];
  if (value.type === "code" && value.lines) return value.lines.map(({ text, at }) => ({ text, at }));
  return Object.values(value).flatMap(texts);
}

test("every text stands where it says in the source, and every prefix can be read", () => {
  const source =
    "# Ti*t*le\n\nA **b\nc** `d` [e](https://f.example)\\!\n\n> - g\n>   h\n\n1. i\n\n   ```x\n   j\n   ```\n2. k\n\n| l | m |\n|---|---|\n| n\\| | *o* |\n\nüber 😀 ***p***\n";
  for (let end = 0; end <= source.length; end++) {
    const prefix = source.slice(0, end);
    for (const open of [false, true]) {
      for (const { text, at } of texts(parse(prefix, { open }))) {
        assert.equal(prefix.slice(at, at + text.length), text);
      }
    }
  }
});

test("hostile text takes no time", () => {
  const begun = performance.now();
  for (const it of ["*a ", "[", "`", "**a", "> ", "- ", "_a_", "![](", "~~a", "|-"]) {
    parse(it.repeat(6000));
    parse(it.repeat(6000), { open: true });
    parse(`${it}\n`.repeat(3000), { open: true });
  }
  assert.ok(performance.now() - begun < 60_000, "no text is of more than quadratic time");
});
