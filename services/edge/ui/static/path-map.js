// The way of a reply as a line of stops, top to bottom; a longer way is a longer line.

import { h } from "./dom.js";

const X = 12;
const LEAST = 26;
const MOST = 74;
const WIDTH = 256;

/** `stops`: [{name, note?, below?, kind?}], `links`: round trips in ms between them, null if unknown. */
export function pathMap(stops, links) {
  const rows = [];
  let y = 12;
  stops.forEach((stop, number) => {
    rows.push(h("circle", { class: stop.kind ?? "", cx: X, cy: y, r: 4.5 }));
    rows.push(h("text", { class: "stop", x: X + 16, y: y + 4.5 }, stop.name));
    if (stop.note) rows.push(h("text", { class: "note", x: WIDTH, y: y + 4.5, "text-anchor": "end" }, stop.note));
    if (stop.below) rows.push(h("text", { class: "note", x: X + 16, y: (y += 18) + 4 }, stop.below));
    if (number === stops.length - 1) return;
    const ms = links[number];
    const length = ms === null || ms === undefined ? LEAST : Math.min(MOST, LEAST + 3 * Math.sqrt(ms));
    rows.push(h("line", { x1: X, y1: y + 7.5, x2: X, y2: y + length - 7.5, class: ms === null ? "near" : "far" }));
    if (ms !== null && ms !== undefined) {
      rows.push(h("text", { class: "ms", x: X + 16, y: y + length / 2 + 4 }, `${round(ms)} ms round trip`));
    }
    y += length;
  });
  const said = stops
    .map((it, number) => (number ? `${links[number - 1] != null ? `${round(links[number - 1])} ms to ` : ""}${it.name}` : it.name))
    .join(", ");
  return h(
    "svg",
    { class: "path", viewBox: `0 0 ${WIDTH} ${y + 14}`, role: "img", "aria-label": `The way of this reply: ${said}` },
    rows,
  );
}

function round(ms) {
  return ms < 10 ? ms.toFixed(1) : Math.round(ms);
}
