// Elements from descriptions, and changes of them with as few touched nodes as possible: what stays
// the same keeps its node, its selection and its place on the screen.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "path", "line", "circle", "rect", "text", "title", "desc"]);

/** A description: `h("p", {class: "note", onclick}, "text", h(...))`. `key` tells siblings apart. */
export function h(tag, attributes = {}, ...children) {
  return { tag, attributes, children: children.flat(Infinity).filter((it) => it !== null && it !== undefined && it !== false) };
}

/** The element that a description is of. */
export function make(description) {
  if (typeof description === "string" || typeof description === "number") {
    return document.createTextNode(String(description));
  }
  const { tag, attributes, children } = description;
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) set(node, name, value, undefined);
  for (const child of children) node.append(make(child));
  node.described = description;
  return node;
}

/** Make the children of `parent` as described. */
export function fill(parent, descriptions) {
  const wanted = descriptions.flat(Infinity).filter((it) => it !== null && it !== undefined && it !== false);
  let node = parent.firstChild;
  for (const it of wanted) {
    if (node === null) {
      parent.append(make(it));
      continue;
    }
    const next = node.nextSibling;
    if (fits(node, it)) change(node, it);
    else node.replaceWith(make(it));
    node = next;
  }
  while (node !== null) {
    const next = node.nextSibling;
    node.remove();
    node = next;
  }
}

function fits(node, description) {
  if (typeof description !== "object") return node.nodeType === Node.TEXT_NODE;
  const { tag, attributes } = node.described ?? {};
  return tag === description.tag && attributes.key === description.attributes.key;
}

function change(node, description) {
  if (typeof description !== "object") {
    const text = String(description);
    // Appended text is appended: a selection in what was there stays.
    if (text !== node.data) {
      if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
      else node.data = text;
    }
    return;
  }
  const before = node.described;
  if (before === description) return;
  const names = new Set([...Object.keys(before.attributes), ...Object.keys(description.attributes)]);
  for (const name of names) set(node, name, description.attributes[name], before.attributes[name]);
  fill(node, description.children);
  node.described = description;
}

function set(node, name, value, before) {
  if (value === before || name === "key") return;
  if (name.startsWith("on")) node[name] = value ?? null;
  else if (name === "style") Object.assign(node.style, value);
  else if (name === "value" || name === "checked" || name === "open") node[name] = value ?? "";
  else if (value === undefined || value === null || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : value);
}

/** The element with this id. */
export function byId(id) {
  return document.getElementById(id);
}
