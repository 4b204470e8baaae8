// The top bar: name of the product, run picker, what the run is doing. It also is the page's heart: it asks for news
// while somebody looks, and for nothing while the page is hidden.
import { asked, put } from "./address.js";
import { code, copyText, follow, node } from "./dom.js";
import { compact, duration, integer } from "./format.js";
import { explanation, introduction } from "./guide.js";
import { help, offer, withdraw } from "./keys.js";
import { SIGNS, sign } from "./sign.js";

const WORDS = { live: "live", idle: "idle", stale: "stale", paused: "paused", ended: "ended", no_data: "no data", away: "service away" };
const PATIENCE_MS = 10_000; // an answer that takes longer was lost; ask again
const SILENCE_MS = 12_000; // from then on the reader is told: a frozen service says nothing itself
const COLORS = { critical: "#d55e00", warning: "#e69f00", unknown: "#8d939a", ok: "#009e73" };
const MOST_LISTED = 100; // runs in the menu; the search field finds the others

export function update(root, view) {
  view.receivedAt = performance.now();
  view.asked = null;
  if (!view.heart) start(root, view);
  titled(view.data);
  // What is pressed would lose its click if it were replaced; the next answer draws it.
  if (!view.menuOpen && !root.querySelector("button:active, a:active")) draw(root, view);
}

export function close(_root, view) {
  clearInterval(view.heart);
  withdraw(view);
  document.removeEventListener("visibilitychange", view.beat);
  removeEventListener("popstate", view.back);
  document.removeEventListener("pointerdown", view.dismiss);
  document.removeEventListener("click", view.clicked);
}

// What the server draws as HTML (elements/markup.py): links stay within the session, buttons copy what they hold.
function clicked(view, event) {
  const { copy } = event.target.closest?.("[data-copy]")?.dataset ?? {};
  if (copy) copyText(copy, event.target);
  const link = event.target.closest?.('[data-testid=stMain] a[href^="./?"]');
  if (!link || event.defaultPrevented || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  const query = new URLSearchParams(new URL(link.href).search);
  const page = query.get("page") ?? "";
  query.delete("page");
  view.send("go", `/${page}?${query}`);
}

function start(root, view) {
  view.answeredAt = performance.now();
  view.beat = () => beat(root, view);
  view.dismiss = (event) => {
    if (view.menuOpen && !root.contains(event.target)) toggle(root, view, false);
  };
  view.heart = setInterval(view.beat, 250);
  document.addEventListener("visibilitychange", view.beat);
  view.back = () => view.send("tick", Date.now()); // the address is another
  addEventListener("popstate", view.back);
  document.addEventListener("pointerdown", view.dismiss);
  view.clicked = (event) => clicked(view, event);
  document.addEventListener("click", view.clicked);
  offer(view, "Everywhere", shortcuts(view));
}

function shortcuts(view) {
  const pages = view.data.pages ?? [];
  return [
    { keys: ["?"], words: "about this page, and this list", run: () => explain(view) },
    ...pages.map(({ path, key, title }) => ({ keys: [`g ${key}`], words: title, run: () => view.send("go", `/${path}`) })),
    { keys: ["j"], words: "older run", run: () => beside(view, 1) },
    { keys: ["k"], words: "newer run", run: () => beside(view, -1) },
    { keys: ["h"], words: "hold: pause the page, and resume it", run: () => pause(view) },
  ];
}

const opened = (view) => view.data.pages?.find(({ open }) => open);

const explain = (view) => help(opened(view)?.title ?? "Keys", explanation(opened(view), view));

function beside(view, way) {
  const { runs, selected } = view.data;
  const other = runs[runs.findIndex((run) => run.name === selected) + way];
  if (other) view.send("pick", other.name);
}

function beat(root, view) {
  if (document.hidden) return;
  const now = performance.now();
  if (paused()) {
    silence(root, 0);
    return ages(root, view);
  }
  const waiting = view.asked !== null && now - view.asked < PATIENCE_MS;
  if (!waiting && now - view.receivedAt >= view.data.interval * 1000) {
    view.asked = now;
    view.send("tick", Date.now());
  }
  silence(root, now - view.receivedAt - view.data.interval * 1000);
  ages(root, view);
}

// What is shown is old, and neither the service nor the dashboard can say so.
function silence(root, silent) {
  const known = root.querySelector(".lp-silent");
  if (silent < SILENCE_MS) {
    known?.remove();
    return;
  }
  const words = `No answer for ${duration(silent / 1000)}`;
  if (known) known.querySelector("b").textContent = words;
  else root.append(node("div", { class: "lp lp-notice lp-error lp-silent", role: "alert" }, node("b", { text: words }),
    node("span", { class: "lp-hint", text: "the dashboard or the monitor service hangs, or the connection is lost · showing the last values · retrying" })));
}

// Ages go on counting between answers, so that a page which lost its server does not look fresh.
function ages(root, view) {
  const waited = (performance.now() - view.receivedAt) / 1000;
  for (const element of root.querySelectorAll("[data-age]")) {
    const text = duration(Number(element.dataset.age) + waited);
    if (element.textContent !== text) element.textContent = text;
  }
}

const paused = () => asked("pause") === "1";

// A paused page asks for nothing by itself; what the reader does on it is answered with the values of then.
function pause(view) {
  put({ pause: paused() ? null : 1 });
  titled(view.data);
  view.redraw();
  if (!paused()) view.beat();
}

function held(view) {
  const at = new Date(Date.now() - (performance.now() - view.receivedAt)).toISOString().slice(11, 19);
  return node("div", { class: "lp lp-notice lp-info lp-paused", role: "status" },
    node("span", {}, node("b", { text: "Paused" }), `: as of ${at} UTC, `, node("b", { "data-age": 0 }), " ago"),
    node("button", { class: "lp-button", type: "button", text: "Resume", onclick: () => pause(view) }));
}

function draw(root, view) {
  const { data } = view;
  view.redraw = () => draw(root, view);
  const selected = data.runs.find((run) => run.name === data.selected);
  const focused = root.contains(document.activeElement) && document.activeElement.className;
  const left = root.querySelector(".lp-tabs")?.scrollLeft;
  root.replaceChildren(
    node("header", { class: "lp lp-bar" },
      node("span", { class: "lp-brand", role: "heading", "aria-level": "1", text: "logprobe" }),
      data.runs.length ? picker(root, view) : null,
      data.pages?.length ? node("nav", { class: "lp-tabs", "aria-label": "pages" }, ...data.pages.map((page) => tab(page, view))) : null,
      node("div", { class: "lp-facts" }, ...facts(data, selected), ...(data.pages?.length ? [pauser(view), asker(view)] : [])),
    ),
    paused() ? held(view) : "",
    ...(data.notices ?? []).map(notice),
    introduction(opened(view), view, () => draw(root, view)) ?? "",
  );
  if (focused) root.querySelector(`button.${focused.split(" ")[0]}`)?.focus();
  scrollTabs(root, view, left);
  ages(root, view);
}

// Brings the open page's tab into view where not all have room; from then on the strip stays as the reader scrolled it.
function scrollTabs(root, view, left) {
  const tabs = root.querySelector(".lp-tabs");
  const open = tabs?.querySelector("[aria-current]");
  if (!open) return;
  if (view.tab === open.textContent && left !== undefined) {
    tabs.scrollLeft = left;
    return;
  }
  const [inner, outer] = [open.getBoundingClientRect(), tabs.getBoundingClientRect()];
  tabs.scrollLeft = inner.left - outer.left - (outer.width - inner.width) / 2;
  view.tab = open.textContent;
}

const tab = ({ path, href, title, open }, view) =>
  node("a", { href, text: title, "aria-current": open ? "page" : null, onclick: (event) => follow(event, view, path) });

const pauser = (view) => node("button", {
  class: "lp-ask lp-pause", type: "button", text: paused() ? "▶" : "‖", title: paused() ? "resume (h)" : "pause: keep what is shown (h)", "aria-label": paused() ? "resume" : "pause", onclick: () => pause(view) });

const asker = (view) => node("button", {
  class: "lp-ask", type: "button", text: "?", title: "about this page, and its keys", "aria-label": "about this page", onclick: () => explain(view) });

function facts(data, run) {
  const list = [];
  if (data.away !== null && data.away !== undefined) list.push(badge("away", "the monitor service is not responding"));
  else if (run && paused()) list.push(badge("paused", "the page is paused"));
  else if (run) list.push(badge(run.state, run.reason));
  if (!run) return list;
  if (run.step !== null) list.push(fact("step", integer(run.step)));
  if (run.age !== null) list.push(node("span", { class: "lp-fact" }, node("b", { "data-age": run.age }), " ago"));
  if (run.tokens) list.push(fact("", `${compact(run.tokens)} tokens`, "lp-wide"));
  if (run.sequences) list.push(fact("", `${compact(run.sequences)} sequences`, "lp-wide"));
  if (data.lag && (data.away === null || data.away === undefined)) list.push(fact("ingest lag", data.lag));
  return list;
}

const fact = (name, value, extra = "") =>
  node("span", { class: `lp-fact ${extra}` }, name ? `${name} ` : "", node("b", { text: value }));

const badge = (state, title) =>
  node("span", { class: `lp-badge lp-is-${state}`, title, role: "status" }, node("i", { "aria-hidden": "true" }), WORDS[state] ?? state);

function notice({ kind, text, age, hint }) {
  const lasting = age === null || age === undefined ? [] : [" for ", node("b", { "data-age": age })];
  return node("div", { class: `lp lp-notice lp-${kind}`, role: kind === "error" ? "alert" : "status" },
    node("span", {}, ...code(text), ...lasting), hint ? node("span", { class: "lp-hint" }, ...code(hint)) : null);
}

// The tab says how the run stands before it says which page this is; its icon has the colour of that.
function titled(data) {
  const page = data.pages?.find(({ open }) => open)?.title;
  const names = [data.selected, page, "logprobe"].filter(Boolean).join(" · ");
  const severity = paused() && data.severity ? "unknown" : data.severity; // a paused page does not know how the run stands
  document.title = [paused() ? "‖" : SIGNS[severity], names].filter(Boolean).join(" ");
  const icon = /** @type {HTMLLinkElement | null} */ (document.querySelector("link[rel~=icon]"));
  if (!icon || !severity) return;
  icon.dataset.own ??= icon.href;
  const dot = `<circle cx="24" cy="24" r="8" fill="${COLORS[severity]}" stroke="#fff" stroke-width="2"/>`;
  const drawn = `data:image/svg+xml,${encodeURIComponent(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0072b2"/><path d="M5 20 C10 20 11 9 16 9 S22 15 27 15" fill="none" stroke="#fff" stroke-width="2.6"/>${dot}</svg>`)}`;
  if (icon.href !== drawn) icon.href = drawn;
}

function picker(root, view) {
  const button = node("button", {
    class: "lp-pick", type: "button", "aria-haspopup": "listbox", "aria-expanded": "false", "aria-label": view.data.selected ? `run ${view.data.selected}, choose another` : "choose a run",
    onclick: () => toggle(root, view, !view.menuOpen),
    onkeydown: (event) => { if (event.key === "ArrowDown") { event.preventDefault(); toggle(root, view, true); } },
  }, view.data.selected ? sign(view.data.severity) : null, node("span", { class: "lp-name", text: view.data.selected ?? "choose a run" }), node("span", { class: "lp-caret", "aria-hidden": "true", text: "▾" }));
  const search = node("input", { class: "lp-search", type: "search", placeholder: "search runs", "aria-label": "search runs", autocomplete: "off", oninput: () => list(root, view) });
  const menu = node("div", { class: "lp-menu", hidden: true, onkeydown: (event) => keys(root, view, event) },
    search, node("div", { class: "lp-options", role: "listbox", "aria-label": "runs, newest first" }), node("p", { class: "lp-more-runs lp-hint", role: "status" }));
  return node("div", { class: "lp-picker" }, button, menu);
}

// The runs whose names have all that was typed, a bounded number of them.
function list(root, view) {
  const { runs, selected } = view.data;
  const words = root.querySelector(".lp-search").value.toLowerCase().split(/\s+/);
  const found = runs.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
  root.querySelector(".lp-options").replaceChildren(...found.slice(0, MOST_LISTED).map((run) => option(root, view, run, run.name === selected)));
  const more = found.length - MOST_LISTED;
  root.querySelector(".lp-more-runs").textContent = more > 0 ? `${integer(more)} more; type a part of the name` : found.length ? "" : "no run has such a name";
}

function option(root, view, run, chosen) {
  return node("button", { class: "lp-option", type: "button", role: "option", "aria-selected": String(chosen), onclick: () => choose(root, view, run.name) },
    sign(run.severity),
    node("span", { class: "lp-name", text: run.name }),
    badge(run.state, null),
  );
}

function choose(root, view, name) {
  toggle(root, view, false);
  if (name !== view.data.selected) view.send("pick", name);
}

function toggle(root, view, open) {
  view.menuOpen = open;
  const menu = root.querySelector(".lp-menu");
  root.querySelector(".lp-search").value = "";
  if (open) list(root, view);
  menu.hidden = !open;
  root.querySelector(".lp-pick").setAttribute("aria-expanded", String(open));
  root.querySelector(open ? ".lp-search" : ".lp-pick")?.focus();
  if (open) root.querySelector(".lp-option[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
}

function keys(root, view, event) {
  const options = [...root.querySelectorAll(".lp-option")];
  const typing = event.target.matches(".lp-search");
  const from = typing && !event.target.value ? root.querySelector(".lp-option[aria-selected=true]") : document.activeElement;
  const at = options.indexOf(from);
  const moves = { ArrowDown: at + 1, ArrowUp: at - 1, ...(typing ? {} : { Home: 0, End: options.length - 1 }) };
  if (event.key === "Escape") toggle(root, view, false);
  else if (typing && event.key === "Enter") options[0]?.click();
  else if (event.key === "ArrowUp" && at <= 0) root.querySelector(".lp-search").focus();
  else if (event.key in moves) options[Math.max(0, Math.min(options.length - 1, moves[event.key]))]?.focus();
  else return;
  event.preventDefault();
}
