// The distance slider: milliseconds by which the round trip between edge and datacenter is made
// longer, for this tab's chats alone. There only if the edge allows it (edge.added_distance).

import { fill, h } from "./dom.js";

const MOST_MS = 300;
const STEP_MS = 10;

let added = 0;
let allowed = null;
const places = new Set();

/** The round trip to add to the next chat. */
export function addedRttMs() {
  return added;
}

/** Show the slider in an element, if the edge allows it. Several show the same distance. */
export async function mountDistance(place) {
  allowed ??= fetch("ui/settings.json")
    .then((answer) => (answer.ok ? answer.json() : {}))
    .then((settings) => settings.added_distance === true)
    .catch(() => false);
  if (!(await allowed)) return;
  place.hidden = false;
  places.add(place);
  draw();
}

function draw() {
  for (const place of places) {
    fill(place, [
      h(
        "label",
        { class: "distance", title: "Makes the way between edge and datacenter longer, for your chats" },
        h("span", {}, "Distance"),
        h("input", {
          type: "range",
          min: "0",
          max: String(MOST_MS),
          step: String(STEP_MS),
          value: String(added),
          "aria-valuetext": `${added} milliseconds more`,
          oninput: (event) => {
            added = Number(event.target.value);
            draw();
          },
        }),
        h("span", { class: "tabular distance-value" }, added ? `+${added} ms` : "as it is"),
      ),
    ]);
  }
}
