// The pipeline as it runs: a box for each chain of fused operators, rates on the edges.

import { h } from "./dom.js";
import { plural, rate } from "./format.js";
import { laidOut } from "./layout.js";
import { condition, strip, workBar } from "./work.js";

const WIDTHS = [236, 200, 158];
const NARROW = 180;
const ROW = 30;
const REST = 92;

/** view → description of the graph; `width`: the available width; `choose`: called with the chosen operator. */
export function graph(view, { width, chosen, choose }) {
  const chains = chainsOf(view);
  if (!chains.length) return h("p", { class: "empty" }, "The plan is not known yet.");
  const home = new Map(view.operators.map((operator) => [operator.name, operator.chain]));
  const edges = view.edges
    .map((edge) => ({ ...edge, out: edge.from, into: edge.to, from: home.get(edge.from), to: home.get(edge.to) }))
    .filter((edge) => edge.feedback || edge.from !== edge.to);
  const plan = fitted(chains, edges, width);
  const most = Math.max(1, ...edges.map((edge) => edge.per_s ?? 0));
  return h("div", { class: "graph-scroll", tabindex: "0", role: "group", "aria-label": "Graph of the pipeline" },
    h("div", { class: "graph", style: { width: `${plan.width}px`, height: `${plan.height}px` } },
      h("svg", { class: "edges", width: plan.width, height: plan.height, "aria-hidden": "true" },
        edges.map((edge, index) => line(edge, plan.routes[index], plan.upright, most))),
      edges.map((edge, index) => label(edge, plan.routes[index])),
      chains.map((chain) => box(chain, plan, chosen, choose))));
}

/** From left to right if it fits, else downwards; boxes as wide as possible. */
function fitted(chains, edges, width) {
  let plan = null;
  for (const upright of [false, true]) {
    for (const size of upright ? WIDTHS : [WIDTHS[0]]) {
      const boxes = chains.map((chain) => ({ id: chain.name, width: size, height: REST + ROW * chain.operators.length }));
      for (const between of upright ? [60] : [96, 76]) {
        plan = { ...laidOut(boxes, edges, { upright, between, apart: upright ? 12 : 20 }), upright, size };
        if (plan.width <= width) return plan;
      }
    }
  }
  return plan;
}

/** Chains in the order of their first operators, each with its operators and shards. */
export function chainsOf(view) {
  const chains = new Map();
  for (const operator of view.operators) {
    if (!chains.has(operator.chain)) chains.set(operator.chain, { name: operator.chain, operators: [], shards: [] });
    chains.get(operator.chain).operators.push(operator);
  }
  for (const shard of view.shards) chains.get(shard.chain)?.shards.push(shard);
  return [...chains.values()];
}

function box(chain, plan, chosen, choose) {
  const place = plan.places.get(chain.name);
  const narrow = plan.size < NARROW;
  const first = chain.operators[0];
  const { word, tone } = condition(first, chain.shards.map((shard) => shard.phase));
  const size = { left: `${place.x}px`, top: `${place.y}px`, width: `${plan.size}px`, height: `${REST + ROW * chain.operators.length}px` };
  return h("section", { key: chain.name, class: `box ${tone}${narrow ? " narrow" : ""}`, style: size, "aria-label": `${chain.name}: ${word}`, "data-chain": chain.name },
    h("header", {}, h("span", { class: `pill ${tone}` }, word), h("span", { class: "shards" }, narrow ? `×${first.shards}` : plural(first.shards, "shard"))),
    chain.operators.map((operator) => h("button", {
      key: operator.name, type: "button", class: "operator", title: operator.name,
      "aria-pressed": String(chosen === operator.name), onclick: () => choose(operator.name), "data-operator": operator.name,
    },
    h("span", { class: `kind is-${operator.kind}`, "aria-label": operator.kind }, KINDS[operator.kind] ?? "·"),
    h("span", { class: "name" }, operator.name),
    troubles(operator),
    h("span", { class: "rate" }, rate(flow(operator))))),
    workBar(first, { brief: narrow }),
    strip(chain.shards));
}

const KINDS = { source: "▶", operator: "ƒ", sink: "■" };
export const flow = (operator) => (operator.kind === "source" ? operator.out_per_s : operator.in_per_s);

function troubles(operator) {
  const many = (operator.skipped ?? 0) + (operator.dead_letters ?? 0) + (operator.late ?? 0);
  if (!many) return null;
  const text = ["late", "skipped", "dead_letters"].filter((name) => operator[name])
    .map((name) => `${operator[name]} ${name.replace("_", " ")}`).join(", ");
  return h("span", { class: "left-out", title: text, "aria-label": text }, "!");
}

function line(edge, route, upright, most) {
  if (route.length < 2) return null;
  const share = Math.log1p(edge.per_s ?? 0) / Math.log1p(most);
  const path = edge.feedback ? cornered(route) : curved(route, upright);
  const kind = edge.feedback ? "edge feedback" : edge.per_s ? "edge" : "edge still";
  return h("g", { class: kind },
    h("path", { d: path, "stroke-width": (1.5 + 2.5 * share).toFixed(2) }),
    h("path", { class: "tip", d: tip(route, upright) }));
}

function curved(route, upright) {
  let path = `M${route[0]}`;
  for (let step = 1; step < route.length; step += 1) {
    const [x0, y0] = route[step - 1];
    const [x1, y1] = route[step];
    const half = upright ? (y1 - y0) / 2 : (x1 - x0) / 2;
    path += upright ? ` C${x0},${y0 + half} ${x1},${y1 - half} ${x1},${y1}` : ` C${x0 + half},${y0} ${x1 - half},${y1} ${x1},${y1}`;
  }
  return path;
}

const cornered = (route) => `M${route.join(" L")}`;

function tip(route, upright) {
  const [x, y] = route.at(-1);
  return upright ? `M${x - 5},${y - 8} L${x},${y} L${x + 5},${y - 8}` : `M${x - 8},${y - 5} L${x},${y} L${x - 8},${y + 5}`;
}

function label(edge, route) {
  if (route.length < 2) return null;
  const middle = Math.floor((route.length - 1) / 2);
  const [x0, y0] = route[middle];
  const [x1, y1] = route[middle + 1];
  const how = edge.feedback ? `${edge.routing}, closes a cycle` : edge.routing;
  return h("span", {
    class: "on-edge", title: `${edge.out} → ${edge.into}: ${how}`, "data-edge": `${edge.out} → ${edge.into}`,
    style: { left: `${(x0 + x1) / 2}px`, top: `${(y0 + y1) / 2}px` },
  }, h("b", {}, rate(edge.per_s)), edge.routing === "on demand" ? null : h("i", {}, edge.feedback ? "feedback" : edge.routing));
}
