// A chart over time, drawn by hand: lines with gaps where nothing was measured, marks for failures,
// and a cursor for mouse, finger and arrow keys that reads the values out.

import { h } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 190;
const LEFT = 58;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 22;

const cursors = new Map();

/**
 * lines: [{name, values, tone: 1..3}], text: value → words, marks: [{at, text}],
 * width: pixels, again: call it when the cursor has moved.
 */
export function chart({ id, title, says, at, lines, text, marks = [], width, again }) {
  const known = lines.flatMap((line) => line.values).filter((value) => value !== null);
  const head = h("header", {}, h("h3", {}, title), says && h("p", {}, says));
  if (at.length < 2 || !known.length) {
    return h("figure", { class: "chart", "data-measure": id, key: id }, head, h("p", { class: "empty" }, "Nothing measured yet."));
  }
  const ticks = rounded(Math.max(...known));
  const top = ticks.at(-1);
  const from = at[0];
  const until = at.at(-1);
  const x = (moment) => LEFT + ((moment - from) / (until - from || 1)) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  const cursor = cursors.get(id) ?? null;
  const near = cursor === null ? null : nearest(at, from + cursor * (until - from));
  const move = (share) => { cursors.set(id, share === null ? null : Math.min(1, Math.max(0, share))); again(); };
  const pointed = (event) => {
    const room = event.currentTarget.getBoundingClientRect();
    move((event.clientX - room.left - LEFT) / (room.width - LEFT - RIGHT));
  };
  const typed = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const index = Math.min(at.length - 1, Math.max(0, (near ?? at.length - 1) + step));
    move((at[index] - from) / (until - from || 1));
  };
  const shown = near ?? at.length - 1;
  return h("figure", { class: "chart", "data-measure": id, key: id }, head,
    h("svg", { width, height: HEIGHT, tabindex: "0", role: "img", "aria-label": `${title}; arrow keys read it`,
      onpointermove: pointed, onpointerdown: pointed, onpointerleave: () => move(null), onkeydown: typed, onblur: () => move(null) },
    ticks.map((tick) => h("g", { class: "tick" },
      h("line", { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
      h("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, text(tick)))),
    moments(from, until, width).map((moment) => h("text", { class: "when", x: x(moment), y: HEIGHT - 5, "text-anchor": "middle" }, clock(moment))),
    marks.filter((mark) => mark.at >= from && mark.at <= until).map((mark) => h("g", { class: "mark" },
      h("title", {}, mark.text),
      h("line", { x1: x(mark.at), x2: x(mark.at), y1: TOP, y2: HEIGHT - BOTTOM }),
      h("path", { d: `M${x(mark.at) - 5},${TOP} h10 l-5,7 z` }))),
    lines.map((line) => h("path", { class: `line tone-${line.tone}`, d: drawn(at, line.values, x, y) })),
    near === null ? null : h("g", { class: "cursor" },
      h("line", { x1: x(at[near]), x2: x(at[near]), y1: TOP, y2: HEIGHT - BOTTOM }),
      lines.filter((line) => line.values[near] !== null)
        .map((line) => h("circle", { class: `tone-${line.tone}`, cx: x(at[near]), cy: y(line.values[near]), r: 3.5 })))),
    h("figcaption", { "aria-live": near === null ? "off" : "polite" },
      lines.map((line) => h("span", { class: "reading" },
        h("svg", { class: "sample", width: 22, height: 8, "aria-hidden": "true" }, h("path", { class: `line tone-${line.tone}`, d: "M0,4 H22" })),
        line.name, h("b", {}, text(line.values[shown])))),
      h("span", { class: "reading time" }, near === null ? "now" : clock(at[near]))));
}

/** Lines break where there is no value. */
function drawn(at, values, x, y) {
  let path = "";
  let down = false;
  values.forEach((value, index) => {
    if (value === null) { down = false; return; }
    path += `${down ? "L" : "M"}${x(at[index]).toFixed(1)},${y(value).toFixed(1)}`;
    if (!down && (values[index + 1] ?? null) === null) path += "h.1"; // a single point: a dot
    down = true;
  });
  return path;
}

/** Round values from 0 to just above the maximum. */
export function rounded(greatest) {
  if (!(greatest > 0)) return [0, 1];
  const rough = greatest / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [0];
  while (ticks.at(-1) < greatest) ticks.push(ticks.length * step);
  return ticks;
}

function moments(from, until, width) {
  const wanted = Math.max(1, Math.floor((width - LEFT - RIGHT) / 110));
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400];
  const step = steps.find((size) => (until - from) / size <= wanted) ?? 86400 * Math.ceil((until - from) / 86400 / wanted);
  const edge = ((until - from) / (width - LEFT - RIGHT)) * 30;
  const found = [];
  for (let moment = Math.ceil((from + edge * 0.2) / step) * step; moment <= until - edge; moment += step) found.push(moment);
  return found;
}

function nearest(at, moment) {
  let best = 0;
  at.forEach((one, index) => { if (Math.abs(one - moment) < Math.abs(at[best] - moment)) best = index; });
  return best;
}
