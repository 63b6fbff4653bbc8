// The advice curve: the total cost of checkpoints and failures at each interval.

import { rounded } from "./chart.js";
import { h } from "./dom.js";
import { chosen } from "./format.js";

const HEIGHT = 220;
const [LEFT, RIGHT, TOP, BOTTOM] = [52, 24, 26, 34];
const cost = (share) => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;

export function adviceCard(view, page) {
  const { advice } = view;
  if (!advice || advice.curve.length < 2) return null;
  const width = page.width("advice", 640);
  const curve = [...advice.curve].sort((one, other) => one[0] - other[0]).filter(([interval]) => interval > 0);
  const [first, last] = [Math.log(curve[0][0]), Math.log(curve.at(-1)[0])];
  const ticks = rounded(Math.max(...curve.map(([, share]) => share)));
  const x = (interval) => LEFT + ((Math.min(last, Math.max(first, Math.log(interval))) - first) / (last - first || 1)) * (width - LEFT - RIGHT);
  const y = (share) => TOP + (1 - share / ticks.at(-1)) * (HEIGHT - TOP - BOTTOM);
  return h("section", { class: "card", key: "advice" },
    h("header", { class: "card-head" }, h("h2", {}, "How often?", h("small", {}, "total cost of checkpoints and failures, by interval"))),
    h("p", { class: "hint" }, words(advice, curve)),
    h("div", { class: "chart", "data-measure": "advice" },
      h("svg", { width, height: HEIGHT, role: "img", "aria-label": words(advice, curve) },
        ticks.map((tick) => h("g", { class: "tick" }, h("line", { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }), h("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, cost(tick)))),
        spread(curve, x).map(([interval]) => h("text", { class: "when", x: x(interval), y: HEIGHT - 12, "text-anchor": "middle" }, chosen(interval))),
        h("path", { class: "line tone-1", d: `M${curve.map(([interval, share]) => `${x(interval).toFixed(1)},${y(share).toFixed(1)}`).join("L")}` }),
        pin("present", "now", advice.present_s, curve, x, y, -10),
        pin("best", "best", advice.best_s, curve, x, y, 18))));
}

function pin(kind, word, interval, curve, x, y, above) {
  if (!interval) return null;
  const [px, py] = [x(interval), y(between(curve, interval))];
  return h("g", { class: `pin ${kind}` }, h("circle", { cx: px, cy: py, r: 5 }), h("text", { x: px, y: py + above, "text-anchor": "middle" }, `${word}: ${chosen(interval)}`));
}

/** The cost at an interval between the points of the curve. */
function between(curve, interval) {
  const after = curve.findIndex(([one]) => one >= interval);
  if (after === 0) return curve[0][1];
  if (after < 0) return curve.at(-1)[1];
  const [[from, low], [to, high]] = [curve[after - 1], curve[after]];
  return low + (high - low) * ((interval - from) / (to - from));
}

/** As many labels as fit. */
function spread(curve, x) {
  const kept = [];
  for (const point of curve) if (!kept.length || x(point[0]) - x(kept.at(-1)[0]) > 58) kept.push(point);
  return kept;
}

function words(advice, curve) {
  if (!advice.best_s) return "The best interval is not known yet.";
  const best = cost(between(curve, advice.best_s));
  if (!advice.present_s) return `The best interval is ${chosen(advice.best_s)}, at ${best} of the time.`;
  const present = cost(between(curve, advice.present_s));
  return `Every ${chosen(advice.present_s)} costs ${present} of the time; best is ${chosen(advice.best_s)}, at ${best}.`;
}
