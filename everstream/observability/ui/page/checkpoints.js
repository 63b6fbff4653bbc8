// Checkpoints: how long each took, which shard it waited for, and what that shard was doing.

import { h } from "./dom.js";
import { bytes, chosen, clock, count, duration, plural } from "./format.js";
import { adviceCard } from "./advice.js";

const PHASES = [["aligned_s", "aligning", "waiting for markers"], ["capture_s", "capture", "capturing its state"], ["upload_s", "upload", "uploading it"]];
const FEW = 24;

export function checkpoints(view, page) {
  const rows = view.checkpoints;
  const longest = Math.max(0.001, ...rows.map((row) => row.duration_s ?? 0));
  const opened = page.opened("checkpoint") ?? (rows.length ? rows[0].epoch : null);
  return [
    h("section", { class: "card", key: "checkpoints" },
      h("header", { class: "card-head" }, h("h2", {}, "Checkpoints", h("small", {}, said(view))), rows.length ? phaseLegend() : null),
      rows.length ? h("ul", { class: "checkpoints" }, rows.map((row) => entry(row, longest, opened === row.epoch, page)))
        : h("p", { class: "empty" }, view.interval_s ? `None yet; one is due every ${chosen(view.interval_s)}.` : "None yet.")),
    lineCard(view, page),
    adviceCard(view, page),
  ];
}

const said = (view) => `${view.protocol ?? "no protocol"}${view.interval_s ? `, every ${chosen(view.interval_s)}` : ""}`;
const phaseLegend = () => h("ul", { class: "legend" }, PHASES.map(([, tone, words]) => h("li", {}, h("span", { class: `swatch ${tone}`, "aria-hidden": "true" }), words)));

function entry(row, longest, open, page) {
  return h("li", { key: row.epoch, class: row.failed ? "failed" : null, "data-epoch": row.epoch },
    h("button", { type: "button", class: "checkpoint", "aria-expanded": String(open), onclick: () => page.open("checkpoint", open ? -1 : row.epoch) },
      h("span", { class: "epoch" }, `epoch ${row.epoch}`),
      h("span", { class: `pill ${row.failed ? "lost" : "flowing"}` }, row.failed ? "failed" : "stable"),
      h("span", { class: "when" }, clock(row.started_at ?? row.at)),
      h("span", { class: "long" }, h("span", { class: "measure", style: { width: `${Math.max(1, ((row.duration_s ?? 0) / longest) * 100)}%` } })),
      h("span", { class: "figure" }, duration(row.duration_s)),
      h("span", { class: "figure" }, row.failed ? "–" : bytes(row.bytes)),
      h("span", { class: "why" }, row.failed ?? (row.slowest ? `slowest: ${row.slowest}` : ""))),
    open ? phases(row, page) : null);
}

const total = (shard) => PHASES.reduce((sum, [name]) => sum + (shard[name] ?? 0), 0);

function phases(row, page) {
  if (!row.shards.length) return h("div", { class: "phases" }, h("p", { class: "hint" }, row.failed ? `Failed: ${row.failed}. The previous checkpoint is still valid.` : "No shard has reported yet."));
  const sorted = [...row.shards].sort((one, other) => total(other) - total(one));
  const slowest = sorted[0];
  const span = Math.max(0.000001, total(slowest), row.duration_s ?? 0);
  const all = page.opened("phases") === row.epoch;
  const forced = row.shards.filter((shard) => shard.forced).length;
  return h("div", { class: "phases" },
    h("p", { class: "hint" }, verdict(slowest, row), forced ? ` ${plural(forced, "checkpoint")} ${forced === 1 ? "was" : "were"} forced by a message.` : null),
    h("div", { class: "axis", "aria-hidden": "true" }, [0, 0.25, 0.5, 0.75, 1].map((share) => h("span", { style: { left: `${share * 100}%` } }, duration(span * share)))),
    h("ul", {}, (all ? sorted : sorted.slice(0, FEW)).map((shard) => h("li", { key: shard.shard, title: told(shard) },
      h("span", { class: "shard" }, shard.shard, shard.forced ? h("em", {}, "forced") : null),
      h("span", { class: "track", role: "img", "aria-label": told(shard) },
        PHASES.map(([name, tone]) => h("span", { class: tone, style: { width: `${((shard[name] ?? 0) / span) * 100}%` } }))),
      h("span", { class: "figure" }, duration(total(shard))),
      h("span", { class: "figure" }, bytes(shard.bytes))))),
    sorted.length > FEW && h("button", { type: "button", class: "more", onclick: () => page.open("phases", all ? null : row.epoch) }, all ? "Show fewer" : `Show all ${count(sorted.length)} shards`));
}

function verdict(shard, row) {
  const [name, , words] = PHASES.reduce((one, other) => ((shard[other[0]] ?? 0) > (shard[one[0]] ?? 0) ? other : one));
  return `${row.failed ? "It failed: " + row.failed + ". " : ""}${shard.shard} took longest, ${duration(total(shard))}, of which ${duration(shard[name])} ${words}.`;
}

const told = (shard) => `${shard.shard}: ${PHASES.map(([name, , words]) => `${duration(shard[name])} ${words}`).join(", ")}; ${bytes(shard.bytes)}${shard.forced ? "; forced" : ""}`;

/** Where each shard would roll back to, and the logs kept for replay. */
function lineCard(view, page) {
  if (!view.recovery_line) return null;
  const shards = view.shards.filter((shard) => view.recovery_line[shard.id]);
  if (!shards.length) return null;
  const oldest = Math.min(...shards.map((shard) => view.recovery_line[shard.id].at));
  const span = Math.max(1, page.now() - oldest);
  const most = Math.max(1, ...shards.map((shard) => shard.log_bytes ?? 0));
  const since = (at) => Math.max(0, 1 - (page.now() - at.at) / span);
  return h("section", { class: "card", key: "line" },
    h("header", { class: "card-head" }, h("h2", {}, "Recovery line", h("small", {}, "the newest consistent checkpoints, and the logs of messages sent since"))),
    h("div", { class: "axis line-axis", "aria-hidden": "true" }, [0, 0.5, 1].map((share) => h("span", { style: { left: `${share * 100}%` } }, share === 1 ? "now" : `${duration(span * (1 - share))} ago`))),
    h("ul", { class: "recovery-line" }, shards.map((shard) => {
      const at = view.recovery_line[shard.id];
      return h("li", { key: shard.id },
        h("span", { class: "shard" }, shard.id),
        h("span", { class: "track", role: "img", "aria-label": `${shard.id}: checkpoint ${at.number}, ${duration(page.now() - at.at)} ago` },
          h("span", { class: since(at) > 0.8 ? "since late" : "since", style: { left: `${since(at) * 100}%` } }, h("b", {}, `#${at.number}`))),
        h("span", { class: "figure log" }, h("span", { class: "measure", style: { width: `${((shard.log_bytes ?? 0) / most) * 100}%` } }), `log ${bytes(shard.log_bytes)}`));
    })));
}
