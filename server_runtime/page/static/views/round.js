// A round as a time line: a lane for every device, and who holds it up.

import { get, runPath } from "../api.js";
import { fill, h, setText, tile } from "../dom.js";
import { seconds } from "../format.js";
import { heading, refresher } from "../parts.js";
import { VirtualList } from "../virtual.js";

const SPANS = ["waiting", "down", "unknown", "train", "up"];
const NAMES = { waiting: "Waiting", down: "Down", unknown: "Waiting or down", train: "Training", up: "Up", failed: "No update" };

export function roundView({ element, run, live, rest, fail }) {
  const base = `#/run/${encodeURIComponent(run)}`;
  let chosen = rest[0] || "last";
  const pick = h("select", { id: "stage", onchange: () => { chosen = pick.value; history.replaceState(null, "", `${base}/round/${chosen}`); again(); } });
  const top = heading(run, h("label", { class: "filters", for: "stage" }, h("span", { class: "quiet" }, "Round"), pick));
  const tiles = h("div", { class: "tiles" });
  const held = h("p", { class: "held" });
  const ticks = h("div", { class: "ticks" });
  const list = new VirtualList({
    label: "Time line of the devices", columns: [{ title: "Device" }, { title: ticks }, { title: "Total", class: "right" }],
    make: makeLane, draw: drawLane, key: (task) => task.device, rowHeight: 38,
    open: (task) => { location.hash = `${base}/device/${encodeURIComponent(task.device)}`; },
  });
  list.element.classList.add("timeline");
  const legend = h("ul", { class: "legend" }, Object.entries(NAMES).map(([key, name]) =>
    h("li", {}, h("span", { class: `swatch block span-${key}` }), name)));
  fill(element, top.element, tiles, held, legend, list.element);

  async function refresh() {
    const found = await get(runPath(run));
    top.show({ ...found, lives: found.lives.length });
    options(pick, found.stages, chosen);
    const stage = wanted(found.stages, chosen);
    if (!stage) {
      held.hidden = false;
      setText(held, "No round has begun yet.");
      return;
    }
    const full = await get(`${runPath(run)}/rounds/${stage.round}${stage.evaluation ? "?evaluation" : ""}`);
    const now = Date.now() / 1000 - full.began_s;
    const open = full.closed_s === null && found.served;
    const end = Math.max(0.001, ...full.tasks.map((task) => task.to_s ?? (open ? now : task.from_s)));
    for (const task of full.tasks) task.end = task.to_s ?? (open ? now : end);
    list.scale = end;
    drawTicks(ticks, end);
    full.tasks.sort((a, b) => b.end - a.end || a.device.localeCompare(b.device));
    for (const task of full.tasks) task.scale = end;
    list.set(full.tasks);
    fill(tiles, stageTiles(full, end));
    showHeld(held, full, open, base);
  }
  const control = refresher(live, refresh, fail);
  function again() { refresh().catch(fail); }
  return { close: () => { control.close(); list.close(); } };
}

const value = (stage) => `${stage.evaluation ? "m" : ""}${stage.round}`;
const title = (stage) => (stage.evaluation ? `measurement after ${stage.round}` : `${stage.round}`);

function wanted(stages, chosen) {
  return stages.find((stage) => value(stage) === chosen) || stages.at(-1);
}

function options(pick, stages, chosen) {
  const wantedValues = ["last", ...[...stages].reverse().map(value)];
  if (pick.dataset.values === wantedValues.join()) return;
  pick.dataset.values = wantedValues.join();
  fill(pick, h("option", { value: "last" }, "the latest"), [...stages].reverse().map((stage) => h("option", { value: value(stage) }, title(stage))));
  pick.value = wantedValues.includes(chosen) ? chosen : "last";
}

function stageTiles(stage, end) {
  const total = (name) => stage.tasks.reduce((sum, task) => sum + (task.spans[name] || 0), 0);
  const all = SPANS.reduce((sum, name) => sum + total(name), 0) || 1;
  const share = (name) => `${Math.round((100 * total(name)) / all)} %`;
  return [
    tile(stage.evaluation ? "Measurement after round" : "Round", String(stage.round), stage.closed_s ? `took ${seconds(stage.seconds)}` : `${seconds(end)}${stage.answered < stage.devices ? " so far" : ""}`),
    tile("Answered", `${stage.answered} / ${stage.devices}`, `${stage.accepted} with an update`),
    tile("Training", share("train"), "of the devices' time"),
    tile("On the way", share("down"), `down, ${share("up")} up`),
  ];
}

function showHeld(held, stage, open, base) {
  const names = stage.held_up_by;
  held.hidden = !names.length;
  const links = names.slice(0, 5).map((name, place) => [place ? ", " : "", h("a", { href: `${base}/device/${encodeURIComponent(name)}` }, name)]);
  fill(held, open && stage.closed_s === null ? "Waiting for " : "Waited longest for ", links, names.length > 5 ? ` and ${names.length - 5} more` : "");
}

function drawTicks(ticks, end) {
  const text = [0, 0.25, 0.5, 0.75, 1].map((share) => seconds(share * end)).join();
  if (ticks.dataset.text === text) return;
  ticks.dataset.text = text;
  fill(ticks, [0, 0.25, 0.5, 0.75, 1].map((share) => h("span", { style: { left: `${100 * share}%` } }, share ? seconds(share * end) : "0")));
}

function makeLane() {
  const row = h("div", {});
  row.parts = { name: h("div", { role: "gridcell", class: "name" }), lane: h("div", { class: "lane", role: "img" }), total: h("div", { role: "gridcell", class: "right" }) };
  row.append(row.parts.name, h("div", { role: "gridcell" }, row.parts.lane), row.parts.total);
  return row;
}

function drawLane(element, task) {
  const { parts } = element;
  setText(parts.name, task.device);
  setText(parts.total, seconds(task.end - task.from_s));
  const pieces = [];
  const piece = (kind, from, to) => {
    if (to > from) pieces.push(h("i", { class: kind, style: { left: `${(100 * from) / task.scale}%`, width: `${(100 * (to - from)) / task.scale}%` } }));
  };
  let at = task.from_s;
  for (const name of SPANS) {
    const long = task.spans[name] || 0;
    piece(`span-${name}`, at, at + long);
    at += long;
  }
  if (!task.outcome) piece("open", task.from_s, task.end);
  else if (task.outcome !== "accepted") piece("failed", task.from_s, task.end);
  else if (at === task.from_s) piece("span-train", task.from_s, task.end);
  parts.lane.replaceChildren(...pieces);
  const said = SPANS.filter((name) => task.spans[name] >= 0.001).map((name) => `${NAMES[name].toLowerCase()} ${seconds(task.spans[name])}`);
  const word = task.outcome === "accepted" ? said.join(", ") || "done" : task.outcome ? `${task.outcome}: ${task.detail}` : `${task.at?.state || "not answered yet"}`;
  parts.lane.setAttribute("aria-label", word);
  parts.lane.title = word;
}
