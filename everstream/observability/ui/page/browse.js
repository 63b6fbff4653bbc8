// Contents of the store: the largest keys of an operator's state, one key, and its dead letters.
// Loaded when a reader asks for it, not with every update.

import { h } from "./dom.js";
import { ask } from "./feed.js";
import { UNKNOWN, bytes, plural } from "./format.js";

const TOP = 20;
const MOST = 50;
const kept = new Map();

function fetchInto(name, path, page) {
  const asked = { path, waiting: true };
  kept.set(name, asked);
  page.again();
  ask(path)
    .then((answer) => { asked.answer = answer; })
    .catch((error) => { asked.error = error.message; })
    .finally(() => { asked.waiting = false; page.again(); });
}

const of = (operator, more) => `operator=${encodeURIComponent(operator)}&${more}`;

export function stateBrowser(view, page) {
  const operators = view.operators.map((operator) => operator.name);
  const chosen = page.opened("state operator") ?? largest(view);
  const shown = kept.get("state");
  const look = (more) => fetchInto("state", `api/state?${of(chosen, more)}`, page);
  const search = (event) => {
    event.preventDefault();
    const key = new FormData(event.currentTarget).get("key");
    look(key ? `key=${encodeURIComponent(key)}` : `top=${TOP}`);
  };
  return h("section", { class: "card", key: "state" },
    h("header", { class: "card-head" }, h("h2", {}, "State", h("small", {}, "in the newest checkpoint"))),
    h("form", { class: "asking", onsubmit: search },
      chooser("Operator", operators, chosen, (name) => { page.open("state operator", name); kept.delete("state"); }),
      h("label", {}, "Key", h("input", { name: "key", type: "search", placeholder: "empty: the largest ones", autocomplete: "off", spellcheck: "false" })),
      h("button", { type: "submit", class: "main" }, "Look")),
    answerOf(shown, "Choose an operator and press Look: its largest keys, or the one you name.", found));
}

function largest(view) {
  const sizes = new Map();
  for (const shard of view.shards) sizes.set(shard.chain, (sizes.get(shard.chain) ?? 0) + (shard.state_bytes ?? 0));
  const chain = [...sizes].sort((one, other) => other[1] - one[1])[0]?.[0];
  const stateful = view.operators.find((operator) => operator.chain === chain && operator.kind === "operator");
  return stateful?.name ?? chain ?? view.operators[0]?.name ?? null;
}

export function deadLetters(view, page) {
  const troubled = view.operators.filter((operator) => operator.dead_letters);
  const operators = (troubled.length ? troubled : view.operators).map((operator) => operator.name);
  const chosen = page.opened("letters operator") ?? operators[0] ?? null;
  const look = (event) => {
    event.preventDefault();
    fetchInto("letters", `api/dead_letters?${of(chosen, `top=${MOST}`)}`, page);
  };
  return h("section", { class: "card", key: "letters" },
    h("header", { class: "card-head" }, h("h2", {}, "Dead letters", h("small", {}, troubled.length ? troubled.map((o) => `${o.name}: ${o.dead_letters}`).join(", ") : "none"))),
    h("p", { class: "hint" }, "Records that an operator could not process, kept by on_error=\"dead_letter\" with the reason."),
    h("form", { class: "asking", onsubmit: look },
      chooser("Operator", operators, chosen, (name) => { page.open("letters operator", name); kept.delete("letters"); }),
      h("button", { type: "submit", class: "main" }, "Look")),
    answerOf(kept.get("letters"), null, letters));
}

const chooser = (name, all, chosen, choose) => h("label", {}, name, h("select", { onchange: (event) => choose(event.target.value) },
  all.map((one) => h("option", { value: one, selected: one === chosen }, one))));

function answerOf(asked, before, drawn) {
  if (!asked) return before && h("p", { class: "empty" }, before);
  if (asked.waiting) return h("p", { class: "empty", role: "status" }, "Reading …");
  if (asked.error) return h("p", { class: "banner lost", role: "alert" }, asked.error);
  return drawn(asked.answer);
}

const LEFT = ["key", "value", "state", "shard", "error", "place", "record"];

function found(answer) {
  const head = `Epoch ${answer.epoch}: ${plural(answer.entries, "entry", "entries")}, ${bytes(answer.bytes)}${answer.rows.length < answer.entries ? `; the ${answer.rows.length} largest` : ""}.`;
  if (!answer.rows.length) return h("p", { class: "empty" }, "There is no such key, or no state.");
  return [h("p", { class: "hint" }, head), rowsOf(answer.rows, ["key", "value", "bytes", "state", "shard"])];
}

function letters(answer) {
  if (!answer.letters.length) return h("p", { class: "empty" }, `None of ${answer.operator}.`);
  return rowsOf(answer.letters, ["error", "record", "place", "shard", "epoch"]);
}

const rowsOf = (rows, columns) => h("div", { class: "table-scroll" }, h("table", { class: "found" },
  h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col", class: LEFT.includes(name) ? "left" : null }, name)))),
  h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((name) => h("td", { class: LEFT.includes(name) ? "left" : null }, shown(name, row[name]))))))));

const shown = (name, value) => (value === null || value === undefined ? UNKNOWN : name === "bytes" ? bytes(value) : String(value));
