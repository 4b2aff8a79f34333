// All runs, past and present.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { ago, percent } from "../format.js";

const EVERY_MS = 3000;

export function runsView({ element, fail }) {
  let timer = 0;
  const list = h("ul", { class: "run-list" });
  const note = h("p", { class: "sub" });
  fill(element, h("div", {}, h("h1", {}, "Runs"), note), list);

  async function refresh() {
    try {
      const runs = await get("api/runs");
      note.textContent = runs.length ? `${runs.length} in this folder, ${runs.filter((run) => run.served).length} at work now`
        : "No run yet: start one with `fedwright server run CONFIG`.";
      fill(list, runs.map((run) => h("li", {}, card(run))));
    } catch (error) {
      if (error.status) { fail(error); return; }
    }
    timer = setTimeout(refresh, EVERY_MS);
  }
  refresh();
  return { close: () => clearTimeout(timer) };
}

function card(run) {
  const figures = run.figures[0] || {};
  const rounds = run.about.rounds || 0;
  const done = rounds ? Math.min(1, run.rounds_done / rounds) : 0;
  return h("a", { class: "card run-card", href: `#/run/${encodeURIComponent(run.name)}/${run.served ? "fleet" : "run"}` },
    h("div", { class: "line" }, h("h2", {}, run.name), h("span", { class: `pill ${run.state}` }, run.state)),
    h("div", { class: "bar", "aria-hidden": "true" }, h("i", { style: { width: `${100 * done}%` } })),
    line("Round", `${run.rounds_done} of ${rounds || "?"}`),
    line("Devices", `${run.devices}`),
    line("Accuracy", percent(figures.accuracy_mean ?? figures.accuracy_before)),
    line("Method", `${run.about.method || "?"}, ${run.about.model || "?"}`),
    line("Began", ago(run.began_s)));
}

function line(label, value) {
  return h("div", { class: "line" }, h("span", {}, label), h("b", {}, value));
}
