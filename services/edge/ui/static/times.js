/** A time as people read it. */
export function ms(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10_000) return `${(value / 1000).toFixed(1)} s`;
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
}
