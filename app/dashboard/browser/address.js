// The page's address holds what is looked at, so that a link opens the same view. What only the browser needs to know
// (zoom, scales) is put there without asking the server, which is told of it with whatever a panel sends next (loader.js).

const CHANGED = "logprobe:address";

export const asked = (name) => new URLSearchParams(location.search).get(name);

// Puts `state` (name → value) into the address; null, undefined or "" takes a name out.
// `step`: as a step of its own, which the reader's way back undoes.
export function put(state, step = false) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(state)) {
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  if (text === location.search.slice(1)) return;
  history[step ? "pushState" : "replaceState"](history.state, "", `${location.pathname}${text && `?${text}`}${location.hash}`);
  dispatchEvent(new Event(CHANGED));
}

// Calls `changed` whenever a panel of this page, or the reader's way back, has changed the address; → ends that.
export function listen(changed) {
  const names = [CHANGED, "popstate"];
  for (const name of names) addEventListener(name, changed);
  return () => { for (const name of names) removeEventListener(name, changed); };
}

let last = 0;

// The number of the last wish of the server that is in the address.
export const knows = () => last;

// What the server wants in the address (browser/address.py), once.
export function told(wish) {
  if (!wish || wish.number <= last) return;
  last = wish.number;
  put(wish.state);
}

// What panels send of what is to be looked at is in the address before the server hears of it.
export function sent(name, value) {
  if (name === "set") put(value);
  if (name === "pick") put({ run: value });
  if (name !== "go") return;
  const [path, query] = value.replace(/^\/+/, "").split("?");
  put({ page: path, ...Object.fromEntries(new URLSearchParams(query)) }, true);
}
