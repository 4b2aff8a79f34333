// What the page asks of its server.

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

async function answer(response) {
  let found = {};
  try { found = await response.json(); } catch { /* a proxy or a server that goes down says no JSON */ }
  if (!response.ok) throw new Refused(response.status, found.error || `the server answered ${response.status}`);
  return found;
}

export async function get(path) {
  return answer(await fetch(path, { headers: { Accept: "application/json" }, cache: "no-store" }));
}

export const me = () => get("api/me");

// A server that was started anew has another word, so that it is asked for each time.
export async function post(path, data) {
  const word = path === "login" ? "" : (await me()).word;
  return fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Fedwright-Word": word || "" },
    body: JSON.stringify(data),
  });
}

export async function order(run, data) {
  return answer(await post(`api/runs/${encodeURIComponent(run)}/orders`, data));
}

export async function login(token) {
  return answer(await post("login", { token }));
}

export const runPath = (run) => `api/runs/${encodeURIComponent(run)}`;
export const devicePath = (run, device) => `${runPath(run)}/devices/${encodeURIComponent(device)}`;
