// Parity with the recipe or with a reference run: test, found, expected, verdict, fix; what is met is folded away.
import { node, table as tableOf, title } from "./dom.js";

export function update(root, view) {
  if (view.version === view.data.version) return;
  view.version = view.data.version;
  const { data } = view;
  const open = root.querySelector("details")?.open;
  const [met, others] = [data.checks.filter((check) => check.tone === "good"), data.checks.filter((check) => check.tone !== "good")];
  const section = node("section", { class: "lp lp-report lp-parity", "aria-label": "parity" },
    title("Parity", "is the run set up so that engine and trainer can agree?"),
    chooser(data, view),
    ...data.notes.map((words) => node("p", { class: "lp-text lp-tone-warning", role: "status", text: words })),
    node("p", { class: `lp-parity-verdict lp-parity-${data.tone}`, role: "status" }, node("b", { text: data.word }), ` ${data.words}`,
      data.compare ? node("a", { href: data.compare, text: "compare their trends" }) : null),
    others.length ? checks("requirements", others) : null,
    met.length ? node("details", { open }, node("summary", { text: `${met.length} of ${data.checks.length} requirements are met` }), checks("requirements met", met)) : null,
    ...(data.reference ? compared(data) : []));
  root.replaceChildren(section);
}

function chooser(data, view) {
  const list = node("select", { "aria-label": "reference", onchange: (event) => view.send("set", { reference: event.target.value }) },
    node("option", { value: "", text: "the built-in recipe alone" }), ...data.others.map((name) => node("option", { value: name, text: name })));
  list.value = data.reference ?? "";
  return node("label", { class: "lp-parity-chooser" }, "compared with", list);
}

function checks(name, items) {
  const head = ["test", "found", "expected", "verdict", "fix"];
  return table(name, head, items.map((check) => [
    node("div", {}, node("b", { text: check.name }), check.layer ? node("span", { class: "lp-hint", text: ` ${check.layer}` }) : null),
    facts(check),
    node("div", { text: check.expected }),
    node("div", {}, node("b", { class: `lp-parity-${check.tone}`, text: check.verdict })),
    node("div", {}, check.fix, check.why ? node("div", { class: "lp-hint", text: check.why }) : null),
  ]));
}

function facts({ found, more }) {
  return node("div", {}, ...found.map(([name, value, who, other]) => node("div", {}, node("span", { class: "lp-hint", text: `${name} = ` }), value,
    who ? node("span", { class: "lp-hint", text: ` (${who})` }) : null, other ? node("span", {}, node("span", { class: "lp-hint", text: ", reference: " }), other) : null)),
    more ? node("div", { class: "lp-hint", text: `and ${more} more` }) : null);
}

function compared({ trends, settings, reference }) {
  const rows = settings.map((cells) => cells.map((words) => node("div", { text: words })));
  return [
    title("Trend compared with the reference", "block by block, beyond noise and margin"),
    table("trends", ["metric", "verdict", "from step", "how"], trends.map(({ tone, cells }) => cells.map((words, at) => node("div", {}, at === 1 ? node("b", { class: `lp-parity-${tone}`, text: words }) : words)))),
    title("Configuration", "differing settings, those required for parity first"),
    rows.length ? table("differing settings", ["setting", "found", reference, "required for parity"], rows) : node("p", { class: "lp-text lp-hint", text: "No recorded settings differ." }),
  ];
}

const table = (name, head, rows) =>
  tableOf(name, head, rows.map((cells) => node("tr", {}, ...cells.map((cell, at) => node("td", { "data-label": head[at] }, cell)))));
