// Tables that are sorted by a click on a heading; long ones show their first rows only.

import { h } from "./dom.js";
import { plural } from "./format.js";

const FEW = 24;
const kept = new Map();

/**
 * columns: [{name, value: row → what to sort by, text: row → what to show, left}], rows, key: row → its name.
 * id: the key of the reader's choice; sort: the default, [column's name, -1 | 1].
 */
export function table({ id, columns, rows, key, sort = null, caption, again, chosen = null, choose = null }) {
  const state = kept.get(id) ?? { sort, all: false };
  const keep = (change) => { kept.set(id, { ...state, ...change }); again(); };
  const by = columns.find((column) => column.name === state.sort?.[0]);
  const sorted = by ? [...rows].sort((one, other) => compare(by.value(one), by.value(other)) * state.sort[1]) : rows;
  const shown = state.all ? sorted : sorted.slice(0, FEW);
  return h("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": caption, key: id },
    h("table", { "data-table": id },
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", {
        class: column.left ? "left" : null, scope: "col",
        "aria-sort": by === column ? (state.sort[1] > 0 ? "ascending" : "descending") : null,
      }, column.value
        ? h("button", { type: "button", onclick: () => keep({ sort: [column.name, by === column ? -state.sort[1] : column.left ? 1 : -1] }) },
          column.name, h("span", { class: "arrow", "aria-hidden": "true" }, by === column ? (state.sort[1] > 0 ? "▲" : "▼") : ""))
        : column.name)))),
      h("tbody", {}, shown.map((row) => h("tr", {
        key: key(row), class: choose ? "choosable" : null, "aria-selected": choose ? String(chosen === key(row)) : null,
        onclick: choose ? () => choose(key(row)) : null,
      }, columns.map((column) => h("td", { class: column.left ? "left" : null }, column.text(row))))))),
    rows.length > FEW && h("button", { type: "button", class: "more", onclick: () => keep({ all: !state.all }) },
      state.all ? "Show fewer" : `Show all ${plural(rows.length, "row")}`));
}

/** Unknown values come last in both directions. */
function compare(one, other) {
  if (one === null || one === undefined) return other === null || other === undefined ? 0 : -1;
  if (other === null || other === undefined) return 1;
  return typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other;
}
