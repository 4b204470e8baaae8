// The page's address holds what is looked at, so that a link opens the same view. What only the browser needs to know
// (zoom, scales) is put there without asking the server, which is told of it with whatever a panel sends next (loader.js).

const CHANGED = "logprobe:address";

export const asked = (name) => new URLSearchParams(location.search).get(name);

// Puts `state` (name → value) into the address; null, undefined or "" takes a name out.
export function put(state) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(state)) {
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  if (text === location.search.slice(1)) return;
  history.replaceState(history.state, "", `${location.pathname}${text && `?${text}`}${location.hash}`);
  dispatchEvent(new Event(CHANGED));
}

// Calls `changed` whenever a panel of this page, or the reader's way back, has changed the address; → ends that.
export function listen(changed) {
  const names = [CHANGED, "popstate"];
  for (const name of names) addEventListener(name, changed);
  return () => { for (const name of names) removeEventListener(name, changed); };
}
