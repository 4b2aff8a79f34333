// A list of any length of which only what can be seen is in the document; arrow keys move, Enter opens.

import { h } from "./dom.js";

const BEYOND = 6;

export class VirtualList {
  // make() gives an empty row element; draw(row element, item) fills it; open(item) is what Enter and a click do.
  constructor({ label, columns, make, draw, open, rowHeight, key }) {
    Object.assign(this, { make, draw, open, rowHeight, key });
    this.items = [];
    this.pool = new Map();
    this.at = 0;
    this.space = h("div", { class: "virtual-space", role: "rowgroup" });
    this.head = h("div", { class: "virtual-head", role: "row", "aria-rowindex": "1" },
      columns.map((column) => h("div", { role: "columnheader", class: column.class || "" }, column.title)));
    this.viewport = h("div", { class: "virtual-view", role: "presentation" }, this.space);
    this.element = h("div", { class: "virtual", role: "grid", "aria-label": label, "aria-readonly": "true" },
      h("div", { role: "rowgroup" }, this.head), this.viewport);
    this.viewport.addEventListener("scroll", () => this.later(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.press(event));
    this.resize = new ResizeObserver(() => this.later());
    this.resize.observe(this.viewport);
  }

  set(items) {
    this.items = items;
    this.element.setAttribute("aria-rowcount", String(items.length + 1));
    this.at = Math.min(this.at, Math.max(0, items.length - 1));
    this.later();
  }

  later() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.render(); });
  }

  height() {
    return typeof this.rowHeight === "function" ? this.rowHeight() : this.rowHeight;
  }

  render() {
    const height = this.height();
    this.space.style.height = `${this.items.length * height}px`;
    const first = Math.max(0, Math.floor(this.viewport.scrollTop / height) - BEYOND);
    const last = Math.min(this.items.length, Math.ceil((this.viewport.scrollTop + this.viewport.clientHeight) / height) + BEYOND);
    const wanted = new Set();
    for (let place = first; place < last; place++) wanted.add(this.key(this.items[place]));
    const free = [];
    for (const [name, element] of this.pool) {
      if (!wanted.has(name) && element !== document.activeElement) { this.pool.delete(name); free.push(element); }
    }
    for (let place = first; place < last; place++) {
      const item = this.items[place];
      const name = this.key(item);
      let element = this.pool.get(name);
      if (!element) {
        element = free.pop() || this.newRow();
        this.pool.set(name, element);
      }
      element.item = item;
      element.style.transform = `translateY(${place * height}px)`;
      element.style.height = `${height}px`;
      element.setAttribute("aria-rowindex", String(place + 2));
      element.tabIndex = place === this.at ? 0 : -1;
      this.draw(element, item);
      if (element.parentNode !== this.space) this.space.append(element);
    }
    for (const element of free) element.remove();
  }

  newRow() {
    const row = this.make();
    row.classList.add("virtual-row");
    row.setAttribute("role", "row");
    row.addEventListener("click", () => this.open(row.item));
    row.addEventListener("focus", () => { this.at = this.items.findIndex((item) => this.key(item) === this.key(row.item)); });
    return row;
  }

  press(event) {
    const page = Math.max(1, Math.floor(this.viewport.clientHeight / this.height()) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" && this.items[this.at]) return this.open(this.items[this.at]);
    if (!(event.key in steps) || !this.items.length) return undefined;
    event.preventDefault();
    this.at = Math.max(0, Math.min(this.items.length - 1, this.at + steps[event.key]));
    const height = this.height();
    const top = this.at * height;
    if (top < this.viewport.scrollTop) this.viewport.scrollTop = top;
    else if (top + height > this.viewport.scrollTop + this.viewport.clientHeight) {
      this.viewport.scrollTop = top + height - this.viewport.clientHeight;
    }
    this.render();
    this.pool.get(this.key(this.items[this.at]))?.focus();
    return undefined;
  }

  close() {
    this.resize.disconnect();
    cancelAnimationFrame(this.waiting);
  }
}
