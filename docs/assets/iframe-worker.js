// Browsers start no worker from a file; there, the search runs in a hidden frame that answers like one.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      const page = inner.document;
      page.open();
      page.write("<!doctype html><title>search</title><body></body>");
      page.close();
      const load = (source) =>
        new Promise((done, failed) => {
          const script = page.createElement("script");
          script.src = source;
          script.onload = done;
          script.onerror = failed;
          page.body.append(script);
        });
      inner.postMessage = (data) => {
        this.dispatchEvent(new MessageEvent("message", { data }));
        this.onmessage?.({ data });
      };
      inner.importScripts = (...sources) => sources.reduce((before, next) => before.then(() => load(next)), Promise.resolve());
      this.ready = load(new URL(url, location.href).href);
    }
    postMessage(data) {
      this.ready.then(() => {
        const inner = this.frame.contentWindow;
        inner.dispatchEvent(new inner.MessageEvent("message", { data: structuredClone(data) }));
      });
    }
    terminate() {
      this.frame.remove();
    }
  };
}
