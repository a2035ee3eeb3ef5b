// The user's settings, kept in this browser. Nothing is sent by them before a chat is.

const KEY = "outrider.settings";
export const DEFAULTS = {
  model: "",
  system: "",
  temperature: "",
  top_p: "",
  top_k: "",
  max_tokens: "",
  seed: "",
  thinking: "",
  speculation: "on",
  tools: "",
  provisional: true,
  coloured: false,
  ahead: false,
  panel: true,
  side: true,
};
const RANGES = {
  temperature: [0, 2, "Temperature", false],
  top_p: [0, 1, "Top p", false],
  top_k: [0, 1_000_000, "Top k", true],
  max_tokens: [1, 1_000_000, "Most tokens", true],
  seed: [0, Number.MAX_SAFE_INTEGER, "Seed", true],
};

export function load() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(KEY) ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

export function keep(settings) {
  localStorage.setItem(KEY, JSON.stringify(settings));
}

/** Sampling fields of the API: those that the user gave. */
export function samplingOf(settings) {
  const sampling = {};
  for (const name of Object.keys(RANGES)) {
    if (settings[name] !== "") sampling[name] = Number(settings[name]);
  }
  return sampling;
}

export function toolsOf(settings) {
  return settings.tools.trim() ? JSON.parse(settings.tools) : [];
}

/** What is wrong with settings, and the name of the field; null: nothing. */
export function problem(settings) {
  for (const [name, [least, most, label, isWhole]] of Object.entries(RANGES)) {
    const stated = settings[name];
    if (stated === "") continue;
    const value = Number(stated);
    if (!Number.isFinite(value) || value < least || value > most || (isWhole && !Number.isInteger(value))) {
      const what = isWhole ? "a whole number" : "a number";
      return { name, text: `${label} is ${what} from ${least} to ${most}, or empty.` };
    }
  }
  try {
    if (!Array.isArray(toolsOf(settings))) throw new Error("no array");
  } catch {
    return { name: "tools", text: "Tools are a JSON array of {type, function}, or empty." };
  }
  return null;
}
