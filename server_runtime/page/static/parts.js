// What several views show alike.

import { h, setText } from "./dom.js";
import { clock } from "./format.js";

export function heading(run, extra = null) {
  const pill = h("span", { class: "pill" });
  const sub = h("p", { class: "sub" });
  const element = h("div", { class: "title-row" },
    h("div", { class: "grow" }, h("h1", {}, run), sub), extra, pill);
  return {
    element,
    show(summary) {
      pill.className = `pill ${summary.state}`;
      setText(pill, summary.state);
      const about = summary.about;
      const parts = [about.method, about.model, about.sample_ratio && about.sample_ratio < 1 ? `${Math.round(100 * about.sample_ratio)} % of devices a round` : "",
        summary.lives > 1 ? `resumed ${summary.lives - 1} ${summary.lives === 2 ? "time" : "times"}` : ""];
      setText(sub, parts.filter(Boolean).join(" · "));
    },
  };
}

export function newsList(lines, label) {
  return h("ul", { class: "news", tabindex: "0", "aria-label": label }, lines.map((line) => h("li", {},
    h("time", {}, clock(line.time)),
    h("span", { class: "what" }, line.what + (line.round ? `, round ${line.round}` : "")),
    h("span", { class: "detail" }, [line.device, line.detail, line.how, line.by].filter(Boolean).join(": ")))));
}

// Draws now, and again when the run has news, at most once a second; what goes wrong at first is told, later it passes.
export function refresher(live, refresh, fail) {
  let busy = false;
  let wanted = false;
  let closed = false;
  let first = true;
  async function turn() {
    if (busy) { wanted = true; return; }
    busy = true;
    wanted = false;
    try {
      await refresh();
      first = false;
    } catch (error) {
      if (!closed && (error.status === 401 || (first && error.status))) fail(error);
      else if (!error.status && !(error instanceof TypeError)) throw error;
      else wanted = true;
    } finally {
      busy = false;
    }
    if (wanted && !closed) setTimeout(turn, 1000);
  }
  const heard = () => { if (!closed) turn(); };
  live.addEventListener("news", heard);
  turn();
  return { close: () => { closed = true; live.removeEventListener("news", heard); } };
}
