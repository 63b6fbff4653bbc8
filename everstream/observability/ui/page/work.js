// How shards spend their time, in colours, patterns and words: busy, back-pressured, waiting.

import { h } from "./dom.js";
import { percent } from "./format.js";

const LOST = new Set(["lost", "failed", "the driver is gone"]);
const ENDED = new Set(["ended", "done", "finished", "stopped"]);
const TROUBLED = new Set([...LOST, "restoring"]);

/** The one word for a chain or a shard, and the tone it is shown in. */
export function condition(work, phases = []) {
  if (phases.some((phase) => LOST.has(phase))) return { word: "lost", tone: "lost" };
  if (phases.includes("restoring")) return { word: "restoring", tone: "restoring" };
  if (phases.length && phases.every((phase) => ENDED.has(phase))) return { word: "ended", tone: "ended" };
  if (work.busy === null || work.busy === undefined) return { word: "not measured yet", tone: "unknown" };
  if ((work.blocked ?? 0) >= 0.5) return { word: "back-pressured", tone: "blocked" };
  if (work.busy >= 0.8) return { word: "busy", tone: "busy" };
  if (work.busy + (work.blocked ?? 0) < 0.02) return { word: "waiting", tone: "waiting" };
  return { word: "flowing", tone: "flowing" };
}

/** A bar of three parts, and words for readers who cannot tell the colours apart. */
export function workBar(work, { words = true, brief = false } = {}) {
  if (work.busy === null || work.busy === undefined) {
    return h("div", { class: "work" }, h("div", { class: "bar unknown" }), words && h("p", {}, "not measured yet"));
  }
  const parts = [["busy", work.busy], ["blocked", work.blocked ?? 0]];
  const said = [`busy ${percent(work.busy)}`];
  if ((work.blocked ?? 0) >= 0.005) said.push(`back-pressured ${percent(work.blocked)}`);
  const text = said.join(" · ");
  return h("div", { class: "work" },
    h("div", { class: "bar", role: "img", "aria-label": text, title: text },
      parts.map(([name, share]) => h("span", { class: name, style: { width: `${Math.min(100, share * 100)}%` } }))),
    words && h("p", {}, brief ? (work.blocked > work.busy ? said.at(-1) : said[0]) : text));
}

const WIDE = 48;

/** One cell for a shard, or for the worst of several where there are very many. */
export function strip(shards, { cells = WIDE } = {}) {
  if (!shards.length) return null;
  const each = Math.ceil(shards.length / cells);
  const groups = [];
  for (let first = 0; first < shards.length; first += each) groups.push(shards.slice(first, first + each));
  const troubled = shards.filter((shard) => TROUBLED.has(shard.phase)).length;
  const label = `${shards.length} shards${troubled ? `, ${troubled} not running` : ""}`;
  return h("div", { class: "strip", role: "img", "aria-label": label }, groups.map((group) => {
    const worst = group.reduce((one, other) => (weight(other) > weight(one) ? other : one));
    return h("span", { class: `cell ${condition(worst, [worst.phase]).tone}`, title: told(worst),
      style: { "--share": `${Math.round(weightShown(worst) * 100)}%` } });
  }));
}

export function told(shard) {
  const { word } = condition(shard, [shard.phase]);
  return `${shard.id}: ${word}, busy ${percent(shard.busy)}, back-pressured ${percent(shard.blocked)}`;
}

const weight = (shard) => (TROUBLED.has(shard.phase) ? 2 : weightShown(shard));
const weightShown = (shard) => Math.min(1, (shard.busy ?? 0) + (shard.blocked ?? 0));

export const legend = () => h("ul", { class: "legend", "aria-label": "What colours and patterns mean" },
  [["busy", "busy"], ["blocked", "back-pressured"], ["waiting", "waiting for input"], ["restoring", "restoring"], ["lost", "lost"]]
    .map(([tone, word]) => h("li", {}, h("span", { class: `swatch ${tone}`, "aria-hidden": "true" }), word)));
