// The shell: which view is shown, light or dark, whether news arrive.

import { me } from "./api.js";
import { fill, h, setText } from "./dom.js";
import { Live } from "./live.js";
import { redraw } from "./plot.js";
import { benchView } from "./views/bench.js";
import { compareView } from "./views/compare.js";
import { deviceView } from "./views/device.js";
import { fleetView } from "./views/fleet.js";
import { loginView } from "./views/login.js";
import { roundView } from "./views/round.js";
import { runView } from "./views/run.js";
import { runsView } from "./views/runs.js";

const OF_RUN = { fleet: fleetView, round: roundView, run: runView, device: deviceView };
const TITLES = { fleet: "Fleet", round: "Round", run: "Run" };
const content = document.getElementById("content");
let live = null;
let view = null;
let shown = 0;

function places() {
  return location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
}

// #/runs  #/run/NAME/fleet  #/run/NAME/round/3  #/run/NAME/device/ID  #/compare/A/B  #/bench
async function show() {
  const turn = ++shown;
  let person;
  try {
    person = await me();
  } catch {
    linkState("lost");
    setTimeout(() => turn === shown && show(), 1000);
    return;
  }
  if (turn !== shown) return;
  const [kind, name, part, ...rest] = places();
  close();
  if (person.name === null) {
    tabs(null, "", person);
    view = loginView(content, show);
    return;
  }
  const ofRun = kind === "run" && name;
  if (ofRun) follow(name);
  else unfollow();
  const which = ofRun ? (part in OF_RUN ? part : "fleet") : kind || "runs";
  tabs(ofRun ? name : null, which, person);
  const context = { element: content, run: name, live, rest, person, fail };
  document.title = ofRun ? `${name} · Fedwright` : "Fedwright";
  if (ofRun) view = OF_RUN[which](context);
  else if (kind === "compare") view = compareView({ ...context, runs: places().slice(1) });
  else if (kind === "bench") view = benchView(context);
  else view = runsView(context);
  content.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function close() {
  view?.close?.();
  view = null;
  fill(content);
}

function follow(name) {
  if (live?.run === name) return;
  live?.close();
  live = new Live(name);
  live.addEventListener("state", () => linkState(live?.state));
  linkState(live.state);
}

function unfollow() {
  live?.close();
  live = null;
  linkState("");
}

function linkState(state) {
  const element = document.getElementById("link");
  element.className = `link-state ${state || ""}`;
  setText(element, { live: "Live", lost: "Connection lost, trying again", connecting: "Connecting" }[state] || "");
}

function tabs(run, which, person) {
  const link = (href, title, current) => h("a", { href, "aria-current": current ? "page" : null }, title);
  const base = `#/run/${encodeURIComponent(run)}`;
  const ofRun = run === null ? [] : Object.entries(TITLES).map(([key, title]) =>
    link(`${base}/${key}`, title, key === which || (which === "device" && key === "fleet")));
  const common = person.name === null ? [] : [link("#/runs", "Runs", which === "runs"), ...ofRun,
    link(run === null ? "#/compare" : `#/compare/${encodeURIComponent(run)}`, "Compare", which === "compare"),
    link("#/bench", "Bench", which === "bench")];
  fill(document.getElementById("tabs"), common);
}

function fail(error) {
  if (error.status === 401) return show();
  return fill(content, h("div", { class: "card" }, h("h1", {}, "This cannot be shown"), h("p", {}, error.message),
    h("p", {}, h("a", { href: "#/runs" }, "All runs"))));
}

const button = document.getElementById("theme");
const wish = matchMedia("(prefers-color-scheme: dark)");
function theme() {
  const kept = localStorage.getItem("theme");
  const dark = kept ? kept === "dark" : wish.matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  setText(button, dark ? "☀" : "☾");
  redraw();
}
button.addEventListener("click", () => {
  localStorage.setItem("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  theme();
});
wish.addEventListener("change", theme);
addEventListener("hashchange", show);
theme();
show();
