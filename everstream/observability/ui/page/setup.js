// The configuration of the run, and its plan.

import { h } from "./dom.js";
import { chosen, moment, plural } from "./format.js";
import { chainsOf } from "./graph.js";

export function setup(view) {
  const facts = [
    ["pipeline", view.pipeline], ["store", view.store], ["engine", view.engine], ["protocol", view.protocol],
    ["interval", view.interval_s ? chosen(view.interval_s) : null], ["started", moment(view.started_at)],
    ...Object.entries(view.configuration ?? {}),
  ];
  const shown = new Map(facts.filter(([, value]) => value !== null && value !== undefined && value !== ""));
  return [
    h("section", { class: "card", key: "configuration" },
      h("header", { class: "card-head" }, h("h2", {}, "Configuration")),
      h("dl", { class: "settings" }, [...shown].map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, String(value)))))),
    h("section", { class: "card", key: "plan" },
      h("header", { class: "card-head" }, h("h2", {}, "Plan", h("small", {}, "fused operators share shards, without a channel in between"))),
      h("div", { class: "table-scroll" }, h("table", {},
        h("thead", {}, h("tr", {}, ["chain", "operators", "fed by"].map((name) => h("th", { class: "left", scope: "col" }, name)), h("th", { scope: "col" }, "shards"))),
        h("tbody", {}, chainsOf(view).map((chain) => h("tr", { key: chain.name },
          h("td", { class: "left" }, chain.name),
          h("td", { class: "left" }, chain.operators.map((operator) => `${operator.name} (${operator.kind})`).join(" → ")),
          h("td", { class: "left" }, feeders(view, chain)),
          h("td", {}, plural(chain.operators[0].shards, "shard")))))))),
  ];
}

function feeders(view, chain) {
  const inside = new Set(chain.operators.map((operator) => operator.name));
  const edges = view.edges.filter((edge) => inside.has(edge.to) && (edge.feedback || !inside.has(edge.from)));
  return edges.map((edge) => `${edge.from} (${edge.routing}${edge.feedback ? ", feedback" : ""})`).join(", ") || "–";
}
