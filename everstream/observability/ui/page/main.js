// Assembles the page: updates come in, parts are drawn, and the reader's choices are kept in between.

import { act, actionBar, dialog, killing, scaling, takeToken } from "./actions.js";
import { deadLetters, stateBrowser } from "./browse.js";
import { checkpoints } from "./checkpoints.js";
import { h, show } from "./dom.js";
import { failures } from "./failures.js";
import { Feed } from "./feed.js";
import { chosen, duration, plural } from "./format.js";
import { newestFirst } from "./order.js";
import { overview } from "./overview.js";
import { setup } from "./setup.js";
import { SIGNS, next, theme, wear } from "./theme.js";

const STALE_S = 15;
const TOAST_MS = 8000;
const TABS = {
  overview: ["Overview", overview, () => null],
  checkpoints: ["Checkpoints", checkpoints, () => null],
  failures: ["Failures", failures, (view) => view.failures.length || null],
  state: ["State", stateBrowser, () => null],
  letters: ["Dead letters", deadLetters, (view) => view.operators.reduce((sum, one) => sum + (one.dead_letters ?? 0), 0) || null],
  setup: ["Setup", setup, () => null],
};

const TONES = { running: "flowing", "the driver is gone": "lost" };

const root = document.getElementById("page");
const opened = new Map();
const widths = new Map();
let view = null;
let ahead = 0;
let heardAt = performance.now();
let connected = false;
let refused = false;
let message = null;
let question = null;
let due = false;

const page = {
  token: takeToken(),
  chosen: null,
  again() {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; draw(); });
  },
  now: () => (view.ended ? view.now : Date.now() / 1000 + ahead),
  width: (id, otherwise) => widths.get(id) ?? otherwise,
  opened: (what) => opened.get(what) ?? null,
  open(what, which) { opened.set(what, which); page.again(); },
  choose(operator) { page.chosen = page.chosen === operator ? null : operator; page.again(); },
  ask(what) { question = what; page.again(); },
  async act(name, values, done) {
    try {
      const answer = await act(name, values, page.token);
      said(answer?.text ?? done, "calm");
    } catch (error) {
      said(`Refused: ${error.message}`, "lost");
    }
  },
};

function said(text, tone) {
  const mine = { text, tone };
  message = mine;
  page.again();
  if (tone === "calm") setTimeout(() => { if (message === mine) { message = null; page.again(); } }, TOAST_MS);
}

const tab = () => (location.hash.slice(1) in TABS ? location.hash.slice(1) : "overview");

function draw() {
  if (view === null) {
    if (refused) show(root, h("p", { class: "first", id: "refused" }, "Open the link that the run printed when it started: the page needs the token in it."));
    else if (!connected) show(root, h("p", { class: "first" }, `No answer from the server for ${silence()}; trying again …`));
    return;
  }
  document.title = `${view.pipeline ?? "Everstream"} · ${view.ended ? view.ended.outcome : view.phase}`;
  const active = tab();
  const acts = view.actions && page.token && !view.ended;
  const kill = acts ? (worker) => page.ask(killing(worker, page)) : null;
  const scale = acts ? (operator) => page.ask(scaling(operator, page)) : null;
  show(root, header(active), h("main", { id: "main", tabindex: "-1" }, TABS[active][1](view, { ...page, kill, scale })), footer(), toast(),
    dialog(question, () => page.ask(null)));
  measure();
  if (question) focusDialog();
}

function header(active) {
  const tone = view.ended ? (view.ended.outcome === "failed" ? "lost" : "ended") : TONES[view.phase] ?? "restoring";
  const worn = theme();
  return h("header", { class: "top" },
    h("div", { class: "title" },
      h("img", { src: "icon.svg", alt: "", width: 28, height: 28 }),
      h("h1", {}, view.pipeline ?? "Everstream"),
      h("span", { class: `pill large ${tone}`, id: "phase" }, view.ended ? view.ended.outcome : view.phase),
      h("span", { class: "facts-line" }, [
        view.started_at === null ? null : `${view.ended ? "ran" : "runs"} for ${chosen(Math.max(0, Math.floor(page.now() - view.started_at)))}`,
        view.epoch ? `epoch ${view.epoch}` : null, view.protocol,
      ].filter(Boolean).join(" · ")),
      h("span", { class: "grow" }),
      actionBar(view, page),
      view.spark_ui ? h("a", { class: "button", href: view.spark_ui, target: "_blank", rel: "noopener noreferrer" }, "Spark UI ↗") : null,
      h("button", { type: "button", class: "quiet", id: "theme", title: `Colours: ${worn}`, "aria-label": `Colours: ${worn}; change`, onclick: () => { wear(next(theme())); page.again(); } }, SIGNS[worn])),
    h("nav", { "aria-label": "Parts of the page" }, Object.entries(TABS).map(([id, [name, , badge]]) => {
      const many = badge(view);
      return h("a", { href: `#${id}`, "aria-current": id === active ? "page" : null }, name, many ? h("span", { class: "badge" }, many) : null);
    })),
    alerts());
}

/** Alerts that are shown on every part of the page. */
function alerts() {
  const shown = [];
  if (stale()) shown.push(h("p", { class: "banner lost", key: "stale", role: "alert", id: "stale" }, `No update for ${silence()}${refused ? "; the server has another token now: open the newest link" : connected ? "" : "; trying again"}. The page shows the last known state.`));
  if (view.ended?.error) shown.push(h("pre", { class: "banner lost", key: "error", role: "alert" }, view.ended.error));
  if (view.phase === "the driver is gone" && !view.ended) shown.push(h("p", { class: "banner lost", key: "driver", role: "alert", id: "driver-lost" }, "The driver's process is gone. A new one is started and resumes from the last checkpoint."));
  const open = view.ended ? [] : view.failures.filter((failure) => failure.caught_up_ms === null);
  if (open.length) shown.push(h("p", { class: "banner lost", key: "open", role: "alert", id: "recovering" }, h("span", {}, `Recovering: ${newestFirst(open)[0].what}. `, h("a", { href: "#failures" }, "See the progress"))));
  return shown.length ? h("div", { class: "alerts" }, shown) : null;
}

/** The outcome of an action, until it is dismissed or replaced. */
const toast = () => message && h("p", { class: `banner toast ${message.tone}`, key: "message", role: "status", id: "message" }, h("span", {}, message.text),
  h("button", { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: () => { message = null; page.again(); } }, "✕"));

const stale = () => (!connected || performance.now() - heardAt > STALE_S * 1000) && !(view.ended && connected);
const silence = () => duration(Math.max(0, Math.round((performance.now() - heardAt) / 1000)));

function footer() {
  return h("footer", {}, "Everstream", view.store ? ` · ${view.store}` : null, view.drivers_lost ? ` · ${plural(view.drivers_lost, "driver")} lost` : null, " · ",
    h("a", { href: "api/view" }, "JSON"), " · ", h("a", { href: "metrics" }, "metrics"));
}

/** Drawings are as wide as their space. */
const sized = new ResizeObserver((changes) => {
  for (const { target, contentRect } of changes) {
    const width = Math.floor(contentRect.width);
    if (width > 0 && widths.get(target.dataset.measure) !== width) { widths.set(target.dataset.measure, width); page.again(); }
  }
});
const watched = new WeakSet();

function measure() {
  for (const element of root.querySelectorAll("[data-measure]")) {
    if (!watched.has(element)) { watched.add(element); sized.observe(element); }
  }
}

let focused = null;
function focusDialog() {
  const form = root.querySelector(".dialog");
  if (!form || form === focused) return;
  focused = form;
  const field = form.querySelector("input");
  if (field) field.value = field.dataset.first;
  (field ?? form.querySelector("button")).focus();
}

wear(theme());
new Feed(
  () => page.token,
  (news) => { view = news; ahead = news.now - Date.now() / 1000; heardAt = performance.now(); connected = true; refused = false; page.again(); },
  (unknown) => { connected = false; refused = unknown; page.again(); },
);
addEventListener("hashchange", () => {
  page.token = takeToken() ?? page.token;
  page.again();
  scrollTo(0, 0);
});
setInterval(page.again, 1000);
