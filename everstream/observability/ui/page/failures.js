// Failures, newest first: from the kill to caught up, which shards rolled back, and what was repeated.

import { h } from "./dom.js";
import { ago, count, duration, milliseconds, moment, plural } from "./format.js";
import { newestFirst } from "./order.js";
import { fact } from "./shards.js";

const STEPS = [
  ["detected_ms", "detected", "until it was detected"],
  ["restarted_ms", "restarted", "until its process was running again"],
  ["restored_ms", "restored", "until every shard had its state"],
  ["replayed_ms", "replayed", "until the sources had replayed what they had emitted before"],
  ["caught_up_ms", "caught up", "until the run was where it had been"],
];

export function failures(view, page) {
  const rows = newestFirst(view.failures);
  const longest = Math.max(1, ...rows.map((row) => reached(row)));
  return h("section", { class: "card", key: "failures" },
    h("header", { class: "card-head" }, h("h2", {}, "Failures", h("small", {}, rows.length ? `${plural(rows.length, "failure")}${view.drivers_lost ? `, ${view.drivers_lost} of the driver` : ""}` : null)),
      rows.length ? h("ul", { class: "legend" }, STEPS.map(([, word], index) => h("li", {}, h("span", { class: `swatch step-${index + 1}`, "aria-hidden": "true" }), word))) : null),
    rows.length ? h("ol", { class: "failures" }, rows.map((row) => entry(row, longest, view, page)))
      : h("p", { class: "empty" }, "None. What would happen? Start a run with --kill OPERATOR@5s, or kill a worker here, and see."));
}

const reached = (row) => Math.max(0, ...STEPS.map(([name]) => row[name] ?? 0));

function entry(row, longest, view, page) {
  const open = row.caught_up_ms === null;
  const restored = row.restored_ms !== null;
  const end = row.injected ? "killed" : "detected";
  return h("li", { key: `${row.at}/${row.what}`, class: open ? "open" : null, "data-failure": row.what },
    h("header", {}, h("h3", {}, row.what), h("span", { class: `pill ${open ? "lost" : "flowing"}` }, open ? (view.ended ? "not recovered" : "recovering") : `caught up after ${milliseconds(row.caught_up_ms)}`),
      h("span", { class: "when", title: moment(row.at) }, `${moment(row.at)}, ${ago(page.now() - row.at)}`)),
    h("div", { class: "timeline", role: "img", "aria-label": told(row) }, segments(row, longest)),
    h("ol", { class: "steps" }, h("li", {}, h("b", {}, end), " 0 ms"),
      STEPS.map(([name, word, means]) => (word === "detected" && !row.injected ? null
        : h("li", { class: row[name] === null ? "pending" : null, title: means }, h("b", {}, word), ` ${row[name] === null ? "…" : milliseconds(row[name])}`)))),
    h("dl", { class: "facts" },
      fact("shards lost", row.shards.length ? named(row.shards) : "–"),
      fact("rolled back", row.went_back.length ? named(row.went_back) : open ? "not decided yet" : "none"),
      restored ? fact("to epoch", row.from_epoch || (view.recovery_line ? "one per shard" : "the start")) : null,
      restored ? fact("rolled back by", `${duration(row.rollback_s)}${row.checkpoints_back > 1 ? `, ${row.checkpoints_back} checkpoints` : ""}`) : null,
      restored ? fact("records replayed", count(row.records_replayed)) : null,
      restored ? fact("duplicates suppressed", count(row.duplicates_suppressed)) : null));
}

function segments(row, longest) {
  let before = 0;
  return STEPS.map(([name, word], index) => {
    if (row[name] === null) return null;
    const long = Math.max(0, row[name] - before);
    before = Math.max(before, row[name]);
    return h("span", { key: name, class: `step-${index + 1}`, title: `${word}: after ${milliseconds(row[name])}`, style: { width: `${(long / longest) * 100}%` } });
  });
}

const told = (row) => STEPS.filter(([name]) => row[name] !== null).map(([name, word]) => `${word} after ${milliseconds(row[name])}`).join(", ");
const named = (shards) => (shards.length > 6 ? `${shards.slice(0, 5).join(", ")} and ${shards.length - 5} more` : shards.join(", "));
