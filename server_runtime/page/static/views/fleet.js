// Every device of a run: what it is, what it is at, how it does.

import { fill, h, setText, tile } from "../dom.js";
import { ago, budget, bytes, percent, seconds, width } from "../format.js";
import { orderButtons } from "../act.js";
import { heading } from "../parts.js";
import { VirtualList } from "../virtual.js";

const AT_WORK = ["training", "measuring", "fetching", "uploading"];
const TROUBLE = ["silent", "refused", "rejected", "late", "turned away", "revoked", "taken out"];
const SORTS = {
  name: ["Name", (a, b) => a.device.localeCompare(b.device, "en", { numeric: true })],
  state: ["State", (a, b) => a.state.localeCompare(b.state)],
  seen: ["Longest unheard", (a, b) => a.seen_s - b.seen_s],
  accuracy: ["Worst accuracy", (a, b) => (a.accuracy ?? 2) - (b.accuracy ?? 2)],
  failures: ["Most failures", (a, b) => b.failures - a.failures],
  temperature: ["Hottest", (a, b) => (b.temperature_c ?? -300) - (a.temperature_c ?? -300)],
};
const COLUMNS = [
  { title: "Device" }, { title: "State" }, { title: "Last seen", class: "seen" }, { title: "Board", class: "wide" },
  { title: "Memory in use", class: "middle" }, { title: "Heat", class: "wide right" }, { title: "Link", class: "wide right" },
  { title: "Budget", class: "wide right" }, { title: "Width", class: "wide right" }, { title: "Accuracy", class: "middle right" },
];

export function fleetView({ element, run, live, person }) {
  const tiles = h("div", { class: "tiles" });
  const count = h("span", { class: "count", role: "status" });
  const search = h("input", { type: "search", id: "find", oninput: () => arrange() });
  const only = h("select", { id: "only", onchange: () => arrange() },
    h("option", { value: "" }, "All states"), h("option", { value: "work" }, "At work"), h("option", { value: "trouble" }, "In trouble"),
    h("option", { value: "idle" }, "Idle"));
  const sort = h("select", { id: "sort", onchange: () => arrange() },
    Object.entries(SORTS).map(([key, [title]]) => h("option", { value: key }, title)));
  const list = new VirtualList({
    label: "Devices", columns: COLUMNS, make: makeRow, draw: drawRow, key: (row) => row.device,
    rowHeight: () => (innerWidth <= 760 ? 76 : 56),
    open: (row) => { location.hash = `#/run/${encodeURIComponent(run)}/device/${encodeURIComponent(row.device)}`; },
  });
  list.element.classList.add("fleet");
  const top = heading(run);
  fill(element, top.element, orderButtons(run, live, person), tiles,
    h("div", { class: "filters" }, h("label", { for: "find" }, "Find", search), h("label", { for: "only" }, "Show", only),
      h("label", { for: "sort" }, "Order", sort), count),
    list.element);

  let items = [];
  function arrange() {
    const text = search.value.trim().toLowerCase();
    const fits = { work: (row) => AT_WORK.includes(row.state), trouble: (row) => TROUBLE.includes(row.state), idle: (row) => row.state === "idle" }[only.value];
    items = [...live.rows.values()].filter((row) => (!fits || fits(row))
      && (!text || `${row.device} ${row.board} ${row.profile} ${row.state}`.toLowerCase().includes(text)));
    items.sort(SORTS[sort.value][1]);
    list.set(items);
    setText(count, items.length === live.rows.size ? `${items.length} devices` : `${items.length} of ${live.rows.size} devices`);
  }

  function refresh() {
    if (!live.summary) return;
    top.show(live.summary);
    drawTiles(tiles, live);
    arrange();
  }
  live.addEventListener("news", refresh);
  const timer = setInterval(() => list.later(), 5000);
  refresh();
  return { close: () => { live.removeEventListener("news", refresh); clearInterval(timer); list.close(); } };
}

function drawTiles(tiles, live) {
  const rows = [...live.rows.values()];
  const { summary } = live;
  const stage = summary.stage;
  const figures = summary.figures[0] || {};
  const work = rows.filter((row) => AT_WORK.includes(row.state)).length;
  const trouble = rows.filter((row) => TROUBLE.includes(row.state)).length;
  const waiting = summary.waiting.needed ? `${summary.waiting.present} of ${summary.waiting.needed} are here` : "";
  const now = stage ? `${stage.evaluation ? "Measuring after" : "Round"} ${stage.round}: ${stage.answered} of ${stage.devices} answered` : waiting;
  fill(tiles,
    tile("Round", `${summary.rounds_done} / ${summary.about.rounds ?? "?"}`, now),
    tile("Devices", String(rows.length), `${work} at work`),
    tile("In trouble", String(trouble), trouble ? "see them with Show" : "none"),
    tile("Accuracy", percent(figures.accuracy_mean ?? figures.accuracy_before), figures.accuracy_worst === undefined ? "" : `worst ${percent(figures.accuracy_worst)}`),
    tile("Last round", seconds(figures.seconds), figures.bytes_up === undefined ? "" : `${bytes(figures.bytes_down)} down, ${bytes(figures.bytes_up)} up`));
}

function makeRow() {
  const cell = (name, more = "") => h("div", { role: "gridcell", class: `${name} ${more}` });
  const row = h("div", {});
  row.parts = {
    name: cell("name"), state: cell("state-cell"), seen: cell("seen", "quiet"), board: cell("wide", "quiet"), memory: cell("middle memory"),
    heat: cell("wide right"), link: cell("wide right"), budget: cell("wide right"), width: cell("wide right"), accuracy: cell("middle right"),
  };
  const pill = h("span", { class: "pill" });
  const line = h("span", { class: "state-line" });
  const bar = h("div", { class: "bar", "aria-hidden": "true" }, h("i"));
  row.parts.state.append(h("div", { class: "state-line" }, pill, line), bar);
  const used = h("span");
  const memory = h("div", { class: "bar", "aria-hidden": "true" }, h("i"));
  row.parts.memory.append(used, memory);
  Object.assign(row.parts, { pill, line, bar, used, memoryBar: memory });
  row.append(...["name", "state", "seen", "board", "memory", "heat", "link", "budget", "width", "accuracy"].map((key) => row.parts[key]));
  return row;
}

function drawRow(element, row) {
  const { parts } = element;
  setText(parts.name, row.device);
  setText(parts.pill, row.state);
  parts.pill.className = `pill ${row.state.replaceAll(" ", "-")}`;
  setText(parts.line, progress(row));
  parts.bar.style.visibility = row.of ? "visible" : "hidden";
  parts.bar.firstChild.style.width = `${row.of ? (100 * row.done) / row.of : 0}%`;
  setText(parts.seen, ago(row.seen_s));
  setText(parts.board, row.profile || row.board || "unknown");
  const limit = row.ram_bytes || 0;
  const used = limit && row.free_bytes !== null ? Math.max(0, limit - row.free_bytes) : row.peak_bytes;
  setText(parts.used, limit ? `${bytes(used)} of ${bytes(limit)}` : bytes(used));
  const share = limit ? Math.min(1, used / limit) : 0;
  parts.memoryBar.firstChild.style.width = `${100 * share}%`;
  parts.memoryBar.className = share > 0.9 ? "bar tight" : "bar";
  setText(parts.heat, row.temperature_c === null ? "–" : `${Math.round(row.temperature_c)} °C`);
  setText(parts.link, row.link_bytes_per_s ? `${bytes(row.link_bytes_per_s)}/s` : "–");
  setText(parts.budget, budget(row));
  setText(parts.width, width(row));
  setText(parts.accuracy, percent(row.accuracy));
}

export function progress(row) {
  if (row.of && (row.state === "training" || row.state === "measuring")) return `step ${row.done} of ${row.of}`;
  if (row.of) return `${Math.floor((100 * row.done) / row.of)} %`;
  return row.detail;
}
