// Light, dark, or as the system: the choice is kept in this browser.

const KEY = "outrider.theme";
export const THEMES = ["system", "light", "dark"];

export function theme() {
  const kept = localStorage.getItem(KEY);
  return THEMES.includes(kept) ? kept : "system";
}

export function setTheme(name) {
  localStorage.setItem(KEY, name);
  apply();
}

function apply() {
  const name = theme();
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
}

apply();
