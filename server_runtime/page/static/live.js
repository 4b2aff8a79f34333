// News of the run that is shown: every device's row, kept up to date, and told on when something changed.

import { runPath } from "./api.js";

export class Live extends EventTarget {
  constructor(run) {
    super();
    this.run = run;
    this.rows = new Map();
    this.summary = null;
    this.state = "connecting";
    this.open();
  }

  open() {
    this.source = new EventSource(`${runPath(this.run)}/events`);
    this.source.addEventListener("everything", (event) => {
      const found = JSON.parse(event.data);
      this.rows = new Map(found.rows.map((row) => [row.device, row]));
      this.take(found, found.rows.map((row) => row.device));
    });
    this.source.addEventListener("news", (event) => {
      const found = JSON.parse(event.data);
      for (const row of found.rows || []) this.rows.set(row.device, { ...this.rows.get(row.device), ...row });
      for (const device of found.gone || []) this.rows.delete(device);
      this.take(found, (found.rows || []).map((row) => row.device));
    });
    this.source.onopen = () => this.say("live");
    this.source.onerror = () => {
      this.say("lost");
      // A browser gives up on an answer that is no stream, as a server that is being started may give.
      if (this.source.readyState === EventSource.CLOSED && !this.closed) this.again = setTimeout(() => this.open(), 1000);
    };
  }

  take(found, changed) {
    if (found.summary) this.summary = found.summary;
    this.say("live");
    this.dispatchEvent(new CustomEvent("news", { detail: { changed, summary: found.summary } }));
  }

  say(state) {
    if (state === this.state) return;
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }

  close() {
    this.closed = true;
    clearTimeout(this.again);
    this.source.close();
  }
}
