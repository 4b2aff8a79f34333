// A run: its curves, what was expected and what came, and what happened.

import { get, runPath } from "../api.js";
import { orderButtons } from "../act.js";
import { fill, h, tile } from "../dom.js";
import { bytes, day, percent, seconds } from "../format.js";
import { heading, newsList, refresher } from "../parts.js";
import { plot } from "../plot.js";

export const accuracyOf = (round) => round.accuracy_mean ?? round.accuracy_before;
const points = (figures, name) => figures.filter((one) => one[name] !== undefined && one[name] !== null).map((one) => [one.round, one[name]]);
const round = (value) => (Number.isInteger(value) ? String(value) : "");

export function runView({ element, run, live, person, fail }) {
  const top = heading(run);
  const body = h("div", { class: "grid-2" });
  const tiles = h("div", { class: "tiles" });
  const news = h("section", { class: "card" });
  fill(element, top.element, orderButtons(run, live, person), tiles, body, news);
  let drawn = -1;

  async function refresh() {
    const found = await get(runPath(run));
    top.show({ ...found, lives: found.lives.length });
    fill(tiles, summaryTiles(found));
    fill(news, h("h2", {}, "What happened"), newsList([...found.news].reverse(), "What happened, newest first"));
    // Curves change when a round is closed; drawing them each second would take the cursor away.
    if (drawn === found.figures.length && body.childElementCount) return;
    drawn = found.figures.length;
    fill(body, plots(found));
  }
  return refresher(live, refresh, fail);
}

function summaryTiles(found) {
  const last = found.figures.at(-1) || {};
  const total = (name) => found.figures.reduce((sum, one) => sum + (one[name] || 0), 0);
  return [
    tile("Round", `${found.rounds_done} / ${found.about.rounds ?? "?"}`, `began ${day(found.began_s)}`),
    tile("Accuracy", percent(accuracyOf(last)), "mean over devices"),
    tile("Worst device", percent(last.accuracy_worst), `a tenth are below ${percent(last.accuracy_tenth)}`),
    tile("Time", seconds(total("seconds")), `${seconds(last.seconds)} the last round`),
    tile("Bytes", bytes(total("bytes_down") + total("bytes_up")), `${bytes(total("bytes_up"))} of it up`),
  ];
}

function plots(found) {
  const { figures, costs } = found;
  const mean = figures.filter((one) => accuracyOf(one) !== undefined).map((one) => [one.round, accuracyOf(one)]);
  const steps = costs.filter((one) => one.step_s && one.expected_step_s).map((one) => [1000 * one.expected_step_s, 1000 * one.step_s]);
  const memory = costs.filter((one) => one.peak_bytes && one.expected_bytes).map((one) => [one.expected_bytes / 1e6, one.peak_bytes / 1e6]);
  return [
    plot({ title: "Accuracy of the model that devices were sent", x: "round", y: "accuracy", showX: round, showY: (value) => percent(value, 0),
      series: [{ label: "mean", points: mean }, { label: "worst device", points: points(figures, "accuracy_worst") },
        { label: "tenth percentile", points: points(figures, "accuracy_tenth"), dash: [6, 4] }] }),
    plot({ title: "Loss of the median device", x: "round", y: "loss", showX: round, zero: true,
      series: [{ label: "after training", points: points(figures, "loss") }, { label: "before", points: points(figures, "loss_before") }] }),
    plot({ title: "Bytes of a round", x: "round", y: "bytes", showX: round, showY: bytes, zero: true,
      series: [{ label: "down", points: points(figures, "bytes_down") }, { label: "up", points: points(figures, "bytes_up") }] }),
    plot({ title: "Seconds of a round", x: "round", y: "seconds", showX: round, showY: seconds, zero: true,
      series: [{ label: "seconds", points: points(figures, "seconds") }] }),
    plot({ title: "A training step: predicted against measured", x: "predicted, ms", y: "measured, ms", kind: "points", diagonal: true,
      series: [{ label: "last task of a device", points: steps }] }),
    plot({ title: "Memory: predicted need of the task, measured peak of the whole agent", x: "predicted, MB", y: "peak, MB", kind: "points", zero: true,
      series: [{ label: "last task of a device", points: memory }] }),
  ];
}
