// Curves and clouds of points, each with its numbers as a table for those who do not see them.

import uPlot from "./vendor/uplot-1.6.32/uPlot.esm.js";
import { h, table } from "./dom.js";
import { number } from "./format.js";

const SERIES = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6"];
const live = new Set();

export const colour = (place) => `var(${SERIES[place % SERIES.length]})`;
const read = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function axis(label, show) {
  return {
    label, labelSize: 22, labelFont: "12px system-ui", font: "12px system-ui", stroke: () => read("--muted"),
    grid: { stroke: () => read("--line"), width: 1 }, ticks: { stroke: () => read("--line"), width: 1 },
    size: 64, gap: 4, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : show(tick))),
  };
}

const bare = (label, show) => ({ ...axis(label, show), size: 34, space: 60 });

// series: [{ label, points: [[x, y]…] }]; every series may have its own x.
export function plot({ title, x, y, series, showX = number, showY = number, kind = "line", zero = false, height = 230, diagonal = false }) {
  const marks = kind === "points";
  const shown = series.filter((one) => one.points.length);
  const box = h("div", { class: "plot-box", role: "img", "aria-label": `${title}: ${y} against ${x}` });
  const figure = h("figure", { class: "plot card" }, h("figcaption", {}, title), legend(shown), box,
    shown.length ? numbers(title, x, shown, showX, showY) : null);
  if (!shown.length) {
    box.append(h("p", { class: "empty" }, "Nothing measured yet."));
    return figure;
  }
  const xs = [...new Set(shown.flatMap((one) => one.points.map((point) => point[0])))].sort((a, b) => a - b);
  const data = marks ? scattered(shown) : [xs, ...shown.map((one) => aligned(xs, one.points))];
  const size = () => ({ width: Math.max(200, box.clientWidth), height });
  const range = (_, low, high) => padded(zero ? Math.min(0, low) : low, high);
  const options = {
    ...size(), legend: { show: false }, cursor: { points: { size: 7 }, drag: { x: false, y: false } },
    scales: { x: { time: false, range: (_, low, high) => padded(low, high, marks ? 0.06 : 0.01) }, y: { range } },
    axes: [bare(x, showX), axis(y, showY)],
    series: [{}, ...shown.map((one, place) => ({
      label: one.label, stroke: () => read(SERIES[place % SERIES.length]), width: 2, spanGaps: true,
      dash: one.dash, ...(marks ? { paths: () => null, points: { show: true, size: 9, fill: () => read(SERIES[place % SERIES.length]) } }
        : { points: { show: xs.length < 40, size: 5, fill: () => read(SERIES[place % SERIES.length]) } }),
    }))],
    hooks: diagonal ? { draw: [drawDiagonal] } : {},
  };
  const entry = { figure, box, size };
  // It can be drawn once it has a width.
  requestAnimationFrame(() => {
    if (!box.isConnected) return;
    entry.chart = new uPlot({ ...options, ...size() }, data, box);
    entry.watch = new ResizeObserver(() => entry.chart.setSize(size()));
    entry.watch.observe(box);
    live.add(entry);
  });
  return figure;
}

export function redraw() {
  for (const entry of live) {
    if (entry.figure.isConnected) entry.chart.redraw(false, true);
    else { entry.watch.disconnect(); entry.chart.destroy(); live.delete(entry); }
  }
}

function padded(low, high, share = 0.08) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * share;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

function aligned(xs, points) {
  const known = new Map(points);
  return xs.map((x) => (known.has(x) ? known.get(x) : null));
}

// uPlot wants x in order and one y for each series; two points may share an x.
function scattered(series) {
  const all = series.flatMap((one, place) => one.points.map(([x, y]) => ({ x, y, place }))).sort((a, b) => a.x - b.x);
  return [all.map((point) => point.x), ...series.map((_, place) => all.map((point) => (point.place === place ? point.y : null)))];
}

function drawDiagonal(chart) {
  const { ctx } = chart;
  const low = Math.max(chart.scales.x.min, chart.scales.y.min);
  const high = Math.min(chart.scales.x.max, chart.scales.y.max);
  ctx.save();
  ctx.strokeStyle = read("--muted");
  ctx.setLineDash([6, 6]);
  ctx.beginPath();
  ctx.moveTo(chart.valToPos(low, "x", true), chart.valToPos(low, "y", true));
  ctx.lineTo(chart.valToPos(high, "x", true), chart.valToPos(high, "y", true));
  ctx.stroke();
  ctx.restore();
}

function legend(series) {
  if (series.length < 2) return null;
  return h("ul", { class: "legend" }, series.map((one, place) =>
    h("li", {}, h("span", { class: "swatch", style: { background: colour(place) } }), one.label)));
}

function numbers(title, x, series, showX, showY) {
  const xs = [...new Set(series.flatMap((one) => one.points.map((point) => point[0])))].sort((a, b) => a - b).slice(-200);
  const known = series.map((one) => new Map(one.points));
  const details = h("details", {}, h("summary", {}, "Numbers"));
  // Made when it is wanted: a run may have thousands of rounds.
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    details.append(table(title, [x, ...series.map((one) => one.label)],
      xs.map((at) => [showX(at), ...known.map((points) => (points.has(at) ? showY(points.get(at)) : ""))])));
  });
  return details;
}
