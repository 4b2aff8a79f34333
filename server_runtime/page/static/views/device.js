// One device: what it is, what it did in every round, what the log says of it.

import { devicePath, get } from "../api.js";
import { deviceButtons } from "../act.js";
import { fill, h, setText, table } from "../dom.js";
import { ago, budget, bytes, dash, number, percent, seconds, width } from "../format.js";
import { newsList, refresher } from "../parts.js";
import { plot } from "../plot.js";
import { progress } from "./fleet.js";

export function deviceView({ element, run, live, rest, person, fail }) {
  const device = rest[0] || "";
  const pill = h("span", { class: "pill" });
  const sub = h("p", { class: "sub" });
  const facts = h("dl", { class: "facts" });
  const body = h("div", { class: "grid-2" });
  const history = h("section", { class: "card" });
  const lines = h("section", { class: "card" });
  const back = h("p", { class: "crumbs" }, h("a", { href: `#/run/${encodeURIComponent(run)}/fleet` }, `Fleet of ${run}`));
  fill(element,
    h("div", { class: "title-row" }, h("div", { class: "grow" }, back, h("h1", {}, device), sub), pill),
    deviceButtons(run, device, live, person), h("section", { class: "card" }, h("h2", {}, "The board and its model"), facts), body, history, lines);
  let drawn = "";

  async function refresh() {
    const found = await get(devicePath(run, device));
    pill.className = `pill ${found.state.replaceAll(" ", "-")}`;
    setText(pill, found.state);
    setText(sub, [progress(found), `last seen ${ago(found.seen_s)}`].filter(Boolean).join(" · "));
    fill(facts, factsOf(found).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    fill(lines, h("h2", {}, "Its lines in the log"), newsList(found.lines, "Lines in the log, newest first"));
    const key = `${found.tasks.length} ${found.updates} ${found.failures}`;
    if (key === drawn) return;
    drawn = key;
    fill(body, plots(found.tasks));
    fill(history, h("h2", {}, "Every round"), historyTable(found.tasks));
  }
  return refresher(live, refresh, fail);
}

function factsOf(found) {
  const { offer, board_facts: board, stats } = found;
  return [
    ["Board", board.model || "unknown"], ["Profile", board.profile || dash], ["Cores", number(board.cores)],
    ["Memory", `${bytes(found.free_bytes)} free of ${bytes(found.ram_bytes)}`], ["Runtime", board.runtime || dash], ["Agent", found.agent || dash],
    ["Temperature", found.temperature_c === null ? dash : `${Math.round(found.temperature_c)} °C`],
    ["Link", found.link_bytes_per_s ? `${bytes(found.link_bytes_per_s)}/s` : "not measured"], ["Owner's budget a round", budget(found)],
    ["Samples", number(found.samples)], ["Its model", width(found)], ["Size of its model", offer.bytes_down ? `${bytes(offer.bytes_down)} of weights` : dash],
    ["Work of a prediction", offer.macs ? `${number(offer.macs)} MACs` : dash], ["Memory its task needs", bytes(offer.need_bytes)],
    ["Peak so far", bytes(stats.peak_rss_bytes)], ["Accuracy", percent(found.accuracy)],
    ["Updates", `${found.updates} taken, ${found.failures} failed`], ["Sent and received", `${bytes(stats.bytes_up)} up, ${bytes(stats.bytes_down)} down`],
  ];
}

function plots(tasks) {
  const of = (name, scale = 1) => tasks.filter((task) => task[name] !== null && task[name] !== undefined).map((task) => [task.round, task[name] * scale]);
  const whole = (value) => (Number.isInteger(value) ? String(value) : "");
  return [
    plot({ title: "Accuracy of what it was sent", x: "round", y: "accuracy", showX: whole, showY: (value) => percent(value, 0), series: [{ label: "accuracy", points: of("accuracy") }] }),
    plot({ title: "Time of a training step", x: "round", y: "step", showX: whole, showY: seconds, zero: true,
      series: [{ label: "measured", points: of("step_s") }, { label: "predicted", points: of("expected_step_s"), dash: [6, 4] }] }),
  ];
}

function historyTable(tasks) {
  const rows = [...tasks].reverse().slice(0, 200).map((task) => [String(task.round), h("span", { class: `pill ${task.outcome || "training"}` }, task.outcome || "at work"),
    width(task), percent(task.accuracy), number(task.loss), seconds(task.to_s === null ? null : task.to_s - task.from_s), seconds(task.train_s),
    number(task.steps), bytes(task.peak_bytes), task.detail]);
  return table("Every round of this device", ["Round", "Ended", "Model", "Accuracy", "Loss", "Total", "Training", "Steps", "Peak memory", "Detail"], rows);
}
