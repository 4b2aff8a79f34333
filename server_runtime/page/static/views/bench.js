// What `fedwright bench report` made.

import { fill, h } from "../dom.js";

export function benchView({ element, person }) {
  const head = h("div", {}, h("h1", {}, "Bench"), h("p", { class: "sub" }, "What was measured, as `fedwright bench report` wrote it."));
  if (!person.bench) {
    fill(element, head, h("div", { class: "card" }, h("p", {}, "There is no report yet. Make one with `fedwright bench report`, or name its folder with --page-bench.")));
    return {};
  }
  fill(element, head, h("iframe", { class: "report", title: "Report of the benchmarks", src: "bench/report", sandbox: "" }));
  return {};
}
