// Numbers for people.

export const dash = "–";

export function bytes(value) {
  if (value === null || value === undefined) return dash;
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) return `${trim(value / size)} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

export function seconds(value) {
  if (value === null || value === undefined) return dash;
  if (value === 0) return "0 s";
  if (value < 0.001) return `${trim(value * 1e6)} µs`;
  if (value < 1) return `${trim(value * 1000)} ms`;
  if (value < 120) return `${trim(value)} s`;
  if (value < 7200) return `${trim(value / 60)} min`;
  return `${trim(value / 3600)} h`;
}

export function percent(value, digits = 1) {
  return value === null || value === undefined ? dash : `${(100 * value).toFixed(digits)} %`;
}

export function number(value) {
  if (value === null || value === undefined) return dash;
  const size = Math.abs(value);
  if (size < 1e-9) return "0";
  return size >= 1000 || Number.isInteger(value) ? value.toLocaleString("en", { maximumFractionDigits: 0 })
    : size >= 0.01 ? trim(value) : value.toPrecision(2);
}

function trim(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function ago(time, now = Date.now() / 1000) {
  if (!time) return "never";
  const past = Math.max(0, now - time);
  if (past < 3) return "now";
  if (past < 60) return `${Math.round(past)} s ago`;
  if (past < 3600) return `${Math.round(past / 60)} min ago`;
  if (past < 172800) return `${Math.round(past / 3600)} h ago`;
  return `${Math.round(past / 86400)} days ago`;
}

export function clock(time) {
  return time ? new Date(time * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false }) : dash;
}

export function day(time) {
  return time ? new Date(time * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short", hour12: false }) : dash;
}

export function width(row) {
  if (row.rank) return `rank ${row.rank}`;
  return row.width === null || row.width === undefined ? dash : `${trim(row.width)}×`;
}

export function budget(row) {
  const parts = [];
  if (row.round_s) parts.push(seconds(row.round_s));
  if (row.round_bytes) parts.push(bytes(row.round_bytes));
  return parts.join(", ") || dash;
}
