// Orders: each is asked once more, has an id of its own, and says how things shall be, so that a second click changes nothing.

import { order, post, runPath } from "./api.js";
import { fill, h, toast } from "./dom.js";

function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// field: { label, value, min, max, step } when a number is asked for.
function ask({ title, text, button, danger = false, field = null, act }) {
  const id = newId();
  const input = field && h("input", { type: "number", id: "order-value", required: true, min: field.min, max: field.max, step: field.step, value: field.value });
  const go = h("button", { class: danger ? "danger" : "primary", type: "submit", value: "go" }, button);
  const form = h("form", { method: "dialog" }, h("h2", { id: "order-title" }, title), h("p", {}, text),
    field && h("label", { for: "order-value" }, field.label, input),
    h("div", { class: "actions" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go));
  const dialog = h("dialog", { "aria-labelledby": "order-title" }, form);
  dialog.addEventListener("close", () => dialog.remove());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      await act(id, input ? Number(input.value) : null);
      dialog.close();
    } catch (error) {
      toast(error.message, "bad");
      go.disabled = false;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
}

async function give(run, data) {
  const answer = await order(run, data);
  toast(answer.served ? "Ordered; the server takes it within a second." : "Ordered; no server is at work, the next one takes it.");
}

export function orderButtons(run, live, person) {
  const bar = h("div", { class: "actions", role: "group", "aria-label": "Orders for this run" });
  if (person.role !== "act") return null;
  const simple = (kind, title, text, button, danger) => ask({ title, text, button, danger, act: (id) => give(run, { id, kind }) });
  const pause = h("button", { type: "button", onclick: () => (live.summary?.orders.paused
    ? simple("resume", "Go on with this run?", "The next round begins as soon as enough devices are here.", "Resume")
    : simple("pause", "Pause this run?", "The round that is under way ends; no further one begins until the run is resumed.", "Pause")) });
  const end = h("button", { type: "button", onclick: () => simple("end", "End after this round?",
    "The round that is under way ends, every device is measured once more, and the run is complete.", "End the run", true) }, "End after this round");
  const rounds = h("button", { type: "button", onclick: () => ask({ title: "How many rounds in all?", button: "Set rounds",
    text: `The run has ${live.summary?.about.rounds ?? "?"} rounds, of which ${live.summary?.rounds_done ?? 0} are done.`,
    field: { label: "Rounds in all", value: (live.summary?.about.rounds ?? 0) + 10, min: Math.max(1, live.summary?.rounds_done ?? 1), max: 1000000, step: 1 },
    act: (id, value) => give(run, { id, kind: "rounds", rounds: value }) }) }, "Rounds…");
  const ratio = h("button", { type: "button", onclick: () => ask({ title: "Which share of the devices trains in a round?", button: "Set share",
    text: "Holds from the next round on.",
    field: { label: "Share, in percent", value: Math.round(100 * (live.summary?.orders.sample_ratio ?? live.summary?.about.sample_ratio ?? 1)), min: 1, max: 100, step: 1 },
    act: (id, value) => give(run, { id, kind: "sample-ratio", sample_ratio: value / 100 }) }) }, "Share of devices…");
  const model = h("button", { type: "button", onclick: (event) => download(run, "", event.currentTarget) }, "Global model");
  fill(bar, pause, end, rounds, ratio, model);
  const show = () => { fill(pause, live.summary?.orders.paused ? "Resume" : "Pause"); };
  live.addEventListener("news", show);
  show();
  return bar;
}

export function deviceButtons(run, device, live, person) {
  if (person.role !== "act") return null;
  const isOut = () => (live.summary?.orders.taken_out || []).includes(device);
  const out = h("button", { type: "button", class: "danger", onclick: () => (isOut()
    ? ask({ title: `Let ${device} in again?`, text: "It takes part from the next round on.", button: "Let in", act: (id) => give(run, { id, kind: "let-in", device }) })
    : ask({ title: `Take ${device} out of the run?`, text: "Its task is called in and it gets no other until it is let in again.", button: "Take out", danger: true,
      act: (id) => give(run, { id, kind: "take-out", device }) })) });
  const profile = h("button", { type: "button", onclick: () => ask({ title: `Let ${device} measure itself?`,
    text: "It does so when it has no task, in up to a minute, and reports what it found.", button: "Measure", act: (id) => give(run, { id, kind: "profile", device }) }) }, "Measure itself");
  const model = h("button", { type: "button", class: "primary", onclick: (event) => download(run, device, event.currentTarget) }, "Export its model");
  const show = () => { fill(out, isOut() ? "Let in again" : "Take out"); };
  live.addEventListener("news", show);
  show();
  return h("div", { class: "actions", role: "group", "aria-label": `Orders for ${device}` }, model, profile, out);
}

async function download(run, device, button) {
  button.disabled = true;
  toast("The model is being made; that takes some seconds.");
  try {
    const response = await post(`${runPath(run)}/export`, { device });
    if (!response.ok) throw new Error((await response.json()).error);
    const name = /filename="([^"]+)"/.exec(response.headers.get("content-disposition") || "")?.[1] || "model.onnx";
    const url = URL.createObjectURL(await response.blob());
    const link = h("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  } catch (error) {
    toast(error.message, "bad");
  } finally {
    button.disabled = false;
  }
}
