// The top bar: name of the product, run picker, what the run is doing. It also is the page's heart: it asks for news
// while somebody looks, and for nothing while the page is hidden.
import { code, follow, node } from "./dom.js";
import { compact, duration, integer } from "./format.js";
import { explanation, introduction } from "./guide.js";
import { help, offer, withdraw } from "./keys.js";

const WORDS = { live: "live", idle: "idle", stale: "stale", ended: "ended", no_data: "no data", away: "service away" };
const LETTERS = { "": "o", diagnosis: "d", mismatch: "m", weights: "w", tokens: "t", compare: "c", alerts: "a", actions: "x", data: "s" };
const PATIENCE_MS = 10_000; // an answer that takes longer was lost; ask again

export function update(root, view) {
  view.receivedAt = performance.now();
  view.asked = null;
  if (!view.heart) start(root, view);
  // What is pressed would lose its click if it were replaced; the next answer draws it.
  if (!view.menuOpen && !root.querySelector("button:active, a:active")) draw(root, view);
}

export function close(_root, view) {
  clearInterval(view.heart);
  withdraw(view);
  document.removeEventListener("visibilitychange", view.beat);
  removeEventListener("popstate", view.back);
  document.removeEventListener("pointerdown", view.dismiss);
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
  offer(view, "Everywhere", shortcuts(view));
}

function shortcuts(view) {
  const pages = (view.data.pages ?? []).filter(({ path }) => path in LETTERS);
  return [
    { keys: ["?"], words: "about this page, and this list", run: () => explain(view) },
    ...pages.map(({ path, title }) => ({ keys: [`g ${LETTERS[path]}`], words: title, run: () => view.send("go", `/${path}`) })),
    { keys: ["j"], words: "older run", run: () => beside(view, 1) },
    { keys: ["k"], words: "newer run", run: () => beside(view, -1) },
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
  const waiting = view.asked !== null && now - view.asked < PATIENCE_MS;
  if (!waiting && now - view.receivedAt >= view.data.interval * 1000) {
    view.asked = now;
    view.send("tick", Date.now());
  }
  ages(root, view);
}

// Ages go on counting between answers, so that a page which lost its server does not look fresh.
function ages(root, view) {
  const waited = (performance.now() - view.receivedAt) / 1000;
  for (const element of root.querySelectorAll("[data-age]")) {
    const text = duration(Number(element.dataset.age) + waited);
    if (element.textContent !== text) element.textContent = text;
  }
}

function draw(root, view) {
  const { data } = view;
  const selected = data.runs.find((run) => run.name === data.selected);
  const focused = root.contains(document.activeElement) && document.activeElement.className;
  const left = root.querySelector(".lp-tabs")?.scrollLeft;
  root.replaceChildren(
    node("header", { class: "lp lp-bar" },
      node("span", { class: "lp-brand", role: "heading", "aria-level": "1", text: "logprobe" }),
      data.runs.length ? picker(root, view) : null,
      data.pages?.length ? node("nav", { class: "lp-tabs", "aria-label": "pages" }, ...data.pages.map((page) => tab(page, view))) : null,
      node("div", { class: "lp-facts" }, ...facts(data, selected), data.pages?.length ? asker(view) : null),
    ),
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

const asker = (view) => node("button", {
  class: "lp-ask", type: "button", text: "?", title: "about this page, and its keys", "aria-label": "about this page", onclick: () => explain(view) });

function facts(data, run) {
  const list = [];
  if (data.away !== null && data.away !== undefined) list.push(badge("away", "the monitor service is not responding"));
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

function picker(root, view) {
  const button = node("button", {
    class: "lp-pick", type: "button", "aria-haspopup": "listbox", "aria-expanded": "false", "aria-label": `run ${view.data.selected}, choose another`,
    onclick: () => toggle(root, view, !view.menuOpen),
    onkeydown: (event) => { if (event.key === "ArrowDown") { event.preventDefault(); toggle(root, view, true); } },
  }, node("span", { class: "lp-name", text: view.data.selected }), node("span", { class: "lp-caret", "aria-hidden": "true", text: "▾" }));
  const menu = node("div", { class: "lp-menu", role: "listbox", "aria-label": "runs, newest first", hidden: true, onkeydown: (event) => keys(root, view, event) });
  return node("div", { class: "lp-picker" }, button, menu);
}

function option(root, view, run, chosen) {
  return node("button", { class: "lp-option", type: "button", role: "option", "aria-selected": String(chosen), onclick: () => choose(root, view, run.name) },
    node("span", { class: "lp-name", text: run.name }),
    node("span", { class: "lp-steps", text: run.steps ? `${integer(run.steps)} steps` : "no steps yet" }),
    badge(run.state, run.reason),
  );
}

function choose(root, view, name) {
  toggle(root, view, false);
  if (name !== view.data.selected) view.send("pick", name);
}

function toggle(root, view, open) {
  view.menuOpen = open;
  const menu = root.querySelector(".lp-menu");
  const { runs, selected } = view.data;
  menu.replaceChildren(...(open ? runs.map((run) => option(root, view, run, run.name === selected)) : [])); // a thousand of them take a while
  menu.hidden = !open;
  root.querySelector(".lp-pick").setAttribute("aria-expanded", String(open));
  (open ? root.querySelector("[aria-selected=true]") ?? root.querySelector(".lp-option") : root.querySelector(".lp-pick"))?.focus();
}

function keys(root, view, event) {
  const options = [...root.querySelectorAll(".lp-option")];
  const at = options.indexOf(document.activeElement);
  const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: options.length - 1 };
  if (event.key === "Escape") toggle(root, view, false);
  else if (event.key in moves) options[Math.max(0, Math.min(options.length - 1, moves[event.key]))].focus();
  else return;
  event.preventDefault();
}
