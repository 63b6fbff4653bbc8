// The first part of the page: current figures, the graph, and charts of the last minutes.

import { chart } from "./chart.js";
import { h } from "./dom.js";
import { ago, bytes, chosen, clock, count, duration, milliseconds, percent, plural, rate, short } from "./format.js";
import { flow, graph } from "./graph.js";
import { newestFirst } from "./order.js";
import { workersCard, operatorDetail } from "./shards.js";
import { legend } from "./work.js";

export function overview(view, page) {
  return [
    tiles(view, page),
    waitingFor(view),
    h("section", { class: "card", key: "graph" },
      h("header", { class: "card-head" }, h("h2", {}, "Pipeline", h("small", {}, counted(view))), legend()),
      h("div", { "data-measure": "graph" }, graph(view, { width: page.width("graph", 900), chosen: page.chosen, choose: page.choose })),
      page.chosen ? null : h("p", { class: "hint" }, "Choose an operator to see its shards.")),
    page.chosen ? operatorDetail(view, page.chosen, { again: page.again, close: () => page.choose(null), scale: page.scale }) : null,
    h("section", { class: "charts", key: "charts", "aria-label": "Over time" }, charts(view, page)),
    sinkLatency(view),
    workersCard(view, page),
    notes(view, page),
  ];
}

const counted = (view) => (view.operators.length ? `${plural(view.operators.length, "operator")} in ${plural(view.shards.length || sum(view.operators.filter((o) => o.name === o.chain), "shards"), "shard")}` : "");
const sum = (rows, name) => rows.reduce((total, row) => total + (row[name] ?? 0), 0);

function tiles(view, page) {
  const last = (name) => view.series[name]?.at(-1) ?? null;
  const stable = view.checkpoints.find((one) => one.failed === null);
  const failures = view.failures.length;
  const open = view.failures.filter((one) => one.caught_up_ms === null).length;
  const state = view.shards.some((shard) => shard.state_bytes !== null) ? sum(view.shards, "state_bytes") : null;
  const keys = view.shards.some((shard) => shard.state_keys !== null) ? sum(view.shards, "state_keys") : null;
  const ends = stable ? stable.started_at + stable.duration_s : null;
  return h("section", { class: "tiles", key: "tiles", "aria-label": "At a glance" },
    tile("Records in", rate(last("in_per_s")), `${count(sum(view.operators.filter((o) => o.kind === "source"), "records_out"))} so far`),
    tile("Records out", rate(last("out_per_s")), `${count(sum(view.operators.filter((o) => o.kind === "sink"), "records_in"))} so far`),
    tile("Latency, p99", milliseconds(last("p99_ms")), last("p99_ms") === null ? "not measured at the moment" : `half of all within ${milliseconds(last("p50_ms"))}`),
    tile("Last checkpoint", stable ? ago(page.now() - ends) : "none yet", stable ? `epoch ${stable.epoch}, took ${duration(stable.duration_s)}` : every(view)),
    tile("Failures", count(failures), open ? (view.ended ? "one not recovered" : "recovering now") : failures ? `last ${ago(page.now() - newestFirst(view.failures)[0].at)}` : "none", open ? "lost" : null),
    tile("State", bytes(state), keys === null ? "not measured yet" : `${count(keys)} keys`));
}

const tile = (name, value, more, tone = null) => h("div", { class: `tile ${tone ?? ""}` }, h("h3", {}, name), h("p", { class: "value" }, value), h("p", { class: "more-of-it" }, more));
const every = (view) => (view.interval_s ? `one every ${chosen(view.interval_s)}` : "no interval set");

/** What an idle pipeline waits for. */
function waitingFor(view) {
  if (view.ended) return null;
  let text = null;
  const sources = view.operators.filter((operator) => operator.kind === "source");
  if (view.phase === "waiting for workers") text = "Waiting for Spark to start the workers.";
  else if (view.phase === "running" && sources.length && sources.every((source) => flow(source) === 0)) {
    const names = sources.map((source) => source.name).join(", ");
    text = `Idle: all shards are running and wait for records from ${names}.`;
  }
  return text && h("p", { class: "banner calm", key: "waiting", role: "status" }, text);
}

function charts(view, page) {
  const { series } = view;
  const marks = view.failures.map((failure) => ({ at: failure.at, text: `${clock(failure.at)} ${failure.what}` }));
  const one = (id, title, says, text, lines) => chart({
    id, title, says, text, at: series.at, marks, again: page.again, width: page.width(id, 480),
    lines: lines.map(([name, label], index) => ({ name: label, values: series[name] ?? [], tone: index + 1 })),
  });
  return [
    one("throughput", "Throughput", "records per second", rate, [["in_per_s", "in"], ["out_per_s", "out"]]),
    one("latency", "Latency", "from source to sink", milliseconds, [["p50_ms", "p50"], ["p95_ms", "p95"], ["p99_ms", "p99"]]),
    one("cpu", "CPU", "of all workers; 100 % is one core", percent, [["cpu", "CPU"]]),
    one("memory", "Memory", "of all workers", bytes, [["memory_bytes", "memory"]]),
    (series.behind ?? []).some((value) => value) ? one("behind", "Behind", "records that are due and not emitted yet", short, [["behind", "behind"]]) : null,
  ];
}

function sinkLatency(view) {
  const sinks = Object.entries(view.latency ?? {});
  if (sinks.length < 2) return null;
  return h("section", { class: "card", key: "latencies" },
    h("header", { class: "card-head" }, h("h2", {}, "Latency of each sink")),
    h("div", { class: "table-scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { class: "left", scope: "col" }, "sink"), ["p50", "p95", "p99"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, sinks.map(([name, told]) => h("tr", { key: name }, h("td", { class: "left" }, name),
        ["p50_ms", "p95_ms", "p99_ms"].map((quantile) => h("td", {}, milliseconds(told[quantile])))))))));
}

function notes(view) {
  if (!view.notes.length) return null;
  return h("section", { class: "card", key: "notes" },
    h("header", { class: "card-head" }, h("h2", {}, "Messages")),
    h("ol", { class: "notes" }, newestFirst(view.notes).slice(0, 50).map((note) => h("li", { class: note.warning ? "warning" : null },
      h("time", {}, clock(note.at)), h("span", { class: "sign", "aria-label": note.warning ? "warning" : "note" }, note.warning ? "!" : "·"), h("span", {}, note.text)))));
}
