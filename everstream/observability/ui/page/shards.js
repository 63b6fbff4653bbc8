// The shards of the chosen operator, and the workers.

import { h } from "./dom.js";
import { bytes, count, duration, percent, plural, rate } from "./format.js";
import { table } from "./table.js";
import { condition, strip, workBar } from "./work.js";

const phase = (shard) => {
  const { word, tone } = condition(shard, [shard.phase]);
  return h("span", { class: `pill ${tone}` }, word);
};

export function operatorDetail(view, name, { again, close, scale }) {
  const operator = view.operators.find((one) => one.name === name);
  if (!operator) return null;
  const shards = view.shards.filter((shard) => shard.chain === operator.chain);
  const fused = view.operators.filter((one) => one.chain === operator.chain && one.name !== name).map((one) => one.name);
  return h("section", { class: "card", id: "operator", key: "detail", "aria-label": `Shards of ${name}` },
    h("header", { class: "card-head" },
      h("h2", {}, name, h("small", {}, `${operator.kind}, ${plural(operator.shards, "shard")}`)),
      scale && h("button", { type: "button", onclick: () => scale(operator) }, "Shards …"),
      h("button", { type: "button", class: "quiet", onclick: close, "aria-label": "Close" }, "✕")),
    fused.length ? h("p", { class: "hint" }, `Fused with ${fused.join(", ")}: they share shards, and the figures include all of them.`) : null,
    h("dl", { class: "facts" },
      fact("records in", count(operator.records_in)), fact("records out", count(operator.records_out)),
      fact("late", count(operator.late)), fact("skipped", count(operator.skipped)),
      fact("dead letters", count(operator.dead_letters)), fact("busiest shard", percent(operator.busiest))),
    shards.length > 8 ? strip(shards, { cells: 400 }) : null,
    table({ id: "shards", caption: `Shards of ${name}`, rows: shards, key: (shard) => shard.id, again, sort: shards.length > 8 ? ["busy", -1] : null, columns: [
      { name: "shard", left: true, value: (s) => s.id, text: (s) => s.id },
      { name: "now", left: true, value: (s) => condition(s, [s.phase]).word, text: phase },
      { name: "worker", value: (s) => s.worker, text: (s) => s.worker ?? "–" },
      { name: "in", value: (s) => s.in_per_s, text: (s) => rate(s.in_per_s) },
      { name: "out", value: (s) => s.out_per_s, text: (s) => rate(s.out_per_s) },
      { name: "busy", value: (s) => s.busy, text: (s) => h("div", { class: "in-cell" }, workBar(s, { words: false }), percent(s.busy)) },
      { name: "back-pressured", value: (s) => s.blocked, text: (s) => percent(s.blocked) },
      { name: "frames waiting", value: (s) => s.frames_waiting, text: (s) => count(s.frames_waiting) },
      { name: "watermark lag", value: (s) => s.lag_s, text: (s) => s.holds_back ? h("span", { title: `windows wait for ${s.holds_back}` }, duration(s.lag_s), " ", h("span", { class: "pill" }, `windows wait for ${s.holds_back}`)) : duration(s.lag_s) },
      { name: "state", value: (s) => s.state_bytes, text: (s) => bytes(s.state_bytes) },
      { name: "keys", value: (s) => s.state_keys, text: (s) => count(s.state_keys) },
      { name: "bytes in", value: (s) => s.bytes_in_per_s, text: (s) => perSecond(s.bytes_in_per_s) },
      { name: "bytes out", value: (s) => s.bytes_out_per_s, text: (s) => perSecond(s.bytes_out_per_s) },
    ] }));
}

const perSecond = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);

export const fact = (name, text) => h("div", {}, h("dt", {}, name), h("dd", {}, text));

export function workersCard(view, { again, kill }) {
  if (!view.workers.length) return null;
  const homes = new Map();
  for (const shard of view.shards) homes.set(shard.worker, (homes.get(shard.worker) ?? 0) + 1);
  const columns = [
    { name: "worker", left: true, value: (x) => x.id, text: (x) => `worker ${x.id}` },
    { name: "now", left: true, value: (x) => String(x.alive), text: (x) => h("span", { class: `pill ${x.alive ? "flowing" : "lost"}` }, x.alive ? "alive" : "lost") },
    { name: "machine", left: true, value: (x) => x.machine, text: (x) => x.machine ?? "–" },
    { name: "process", value: (x) => x.pid, text: (x) => x.pid ?? "–" },
    { name: "restarts", value: (x) => x.attempt, text: (x) => count(x.attempt) },
    { name: "shards", value: (x) => homes.get(x.id) ?? 0, text: (x) => count(homes.get(x.id) ?? 0) },
    { name: "CPU", value: (x) => x.cpu, text: (x) => percent(x.cpu) },
    { name: "memory", value: (x) => x.memory_bytes, text: (x) => bytes(x.memory_bytes) },
    { name: "peak memory", value: (x) => x.peak_bytes, text: (x) => bytes(x.peak_bytes) },
    { name: "garbage collection", value: (x) => x.collecting, text: (x) => percent(x.collecting) },
  ];
  if (kill) columns.push({ name: "", text: (x) => x.alive && h("button", { type: "button", class: "small danger", onclick: () => kill(x) }, "Kill") });
  return h("section", { class: "card", key: "workers" },
    h("header", { class: "card-head" }, h("h2", {}, "Workers", h("small", {}, plural(view.workers.length, "process", "processes")))),
    table({ id: "workers", caption: "Workers", rows: view.workers, key: (worker) => worker.id, again, columns }));
}
