// Runs beside one another: curves, what an accuracy costs, and which are best for the price.

import { get, runPath } from "../api.js";
import { fill, h, table } from "../dom.js";
import { bytes, dash, percent, seconds } from "../format.js";
import { plot } from "../plot.js";
import { accuracyOf } from "./run.js";

const whole = (value) => (Number.isInteger(value) ? String(value) : "");

export function compareView({ element, runs, fail }) {
  const chosen = new Set(runs);
  const picks = h("fieldset", { class: "picks" }, h("legend", {}, "Runs to compare"));
  const goal = h("input", { type: "number", id: "goal", min: "1", max: "100", step: "1", value: "80", oninput: () => costs() });
  const body = h("div", { class: "grid-2" });
  const cost = h("section", { class: "card" });
  const note = h("p", { class: "sub" });
  fill(element, h("div", {}, h("h1", {}, "Compare"), note), h("div", { class: "card" }, picks), body,
    h("div", { class: "filters" }, h("label", { for: "goal" }, "Accuracy to reach, %", goal)), cost);
  let found = [];

  async function start() {
    const all = await get("api/runs");
    if (!chosen.size) all.slice(0, 3).forEach((run) => chosen.add(run.name));
    picks.append(...all.map((run) => h("label", {}, h("input", { type: "checkbox", name: "run", value: run.name, checked: chosen.has(run.name),
      onchange: (event) => { if (event.target.checked) chosen.add(run.name); else chosen.delete(run.name); load().catch(fail); } }), run.name)));
    await load();
  }

  async function load() {
    const wanted = [...chosen];
    history.replaceState(null, "", `#/compare/${wanted.map(encodeURIComponent).join("/")}`);
    const answers = await Promise.all(wanted.map((name) => get(runPath(name)).catch(() => null)));
    found = answers.filter(Boolean).map((run) => ({ name: run.name, about: run.about, rows: summed(run.figures) }));
    note.textContent = found.length < 2 ? "Choose two runs or more." : `${found.length} runs; time and bytes are those since each began.`;
    fill(body, plots(found));
    costs();
  }

  function costs() {
    const least = Number(goal.value) / 100;
    const rows = found.map((run) => {
      const at = run.rows.find((row) => row.accuracy >= least);
      const best = Math.max(...run.rows.map((row) => row.accuracy), 0);
      return [run.name, run.about.method || dash, at ? String(at.round) : "not reached", seconds(at?.time), bytes(at?.sum), bytes(at?.peak), percent(best)];
    });
    fill(cost, h("h2", {}, `What ${goal.value} % accuracy costs`),
      table("Cost to reach an accuracy", ["Run", "Method", "Round", "Time", "Bytes", "Peak memory", "Best"], rows));
  }
  start().catch(fail);
  return {};
}

function summed(figures) {
  let time = 0;
  let sum = 0;
  let peak = 0;
  const rows = [];
  for (const one of figures) {
    time += one.seconds || 0;
    sum += (one.bytes_down || 0) + (one.bytes_up || 0);
    peak = Math.max(peak, one.peak_rss_bytes || 0);
    const accuracy = accuracyOf(one);
    if (accuracy !== undefined) rows.push({ round: one.round, accuracy, worst: one.accuracy_worst, time, sum, peak: peak || null });
  }
  return rows;
}

function plots(found) {
  const curves = (name) => found.map((run) => ({ label: run.name, points: run.rows.map((row) => [row[name], row.accuracy]) }));
  const share = (value) => percent(value, 0);
  const best = (name) => found.map((run) => {
    const top = run.rows.reduce((kept, row) => (!kept || row.accuracy > kept.accuracy ? row : kept), null);
    return { label: `${run.name}${isBest(found, run, name) ? " (on the front)" : ""}`, points: top && top[name] !== null ? [[top[name], top.accuracy]] : [] };
  });
  const pareto = (name, x, showX) => plot({ title: `Best accuracy against ${x}`, x, y: "accuracy", showX, showY: share, kind: "points", zero: false, series: best(name) });
  return [
    plot({ title: "Accuracy by round", x: "round", y: "accuracy", showX: whole, showY: share, series: curves("round") }),
    plot({ title: "Accuracy by time", x: "time", y: "accuracy", showX: seconds, showY: share, series: curves("time") }),
    pareto("sum", "bytes", bytes), pareto("time", "seconds", seconds), pareto("peak", "peak memory", bytes),
    plot({ title: "Worst device by round", x: "round", y: "accuracy", showX: whole, showY: share,
      series: found.map((run) => ({ label: run.name, points: run.rows.filter((row) => row.worst !== undefined).map((row) => [row.round, row.worst]) })) }),
  ];
}

// Whether no other run is at least as good for at most as much.
function isBest(found, run, name) {
  const top = (one) => one.rows.reduce((kept, row) => (!kept || row.accuracy > kept.accuracy ? row : kept), null);
  const own = top(run);
  if (!own || own[name] === null) return false;
  return !found.some((other) => {
    const its = other === run ? null : top(other);
    return its && its[name] !== null && its.accuracy >= own.accuracy && its[name] <= own[name] && (its.accuracy > own.accuracy || its[name] < own[name]);
  });
}
