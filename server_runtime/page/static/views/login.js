// Says who one is, where the page is open to more than this machine.

import { login } from "../api.js";
import { fill, h, toast } from "../dom.js";

export function loginView(element, done) {
  const token = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const form = h("form", { class: "card login", onsubmit: async (event) => {
    event.preventDefault();
    try {
      await login(token.value.trim());
      done();
    } catch (error) {
      toast(error.message, "bad");
    }
  } },
  h("h1", {}, "Who are you?"),
  h("p", { class: "sub" }, "Whoever runs the server gives out tokens with `fedwright page --allow NAME`."),
  h("label", { for: "token" }, "Your token"), token,
  h("button", { class: "primary", type: "submit" }, "Open the page"));
  fill(element, form);
  token.focus();
  return {};
}
