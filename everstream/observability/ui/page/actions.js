// Actions on a run, for readers with the token that was printed at its start. The token comes in the
// part of the address that browsers do not send, is removed from it at once, and goes with each
// action as a header.

import { h } from "./dom.js";
import { chosen } from "./format.js";
import { answered } from "./feed.js";

const KEY = "everstream-token";

/** The token from the address, or from an earlier page of this tab. */
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) history.replaceState(null, "", location.pathname + location.search);
  try {
    if (given) sessionStorage.setItem(KEY, given);
    return given ?? sessionStorage.getItem(KEY);
  } catch {
    return given; // No storage in this browser: the token lasts until the page is closed.
  }
}

export async function act(name, values, token) {
  const response = await fetch(`api/actions/${name}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${token ?? ""}` },
    body: JSON.stringify(values),
  });
  return answered(response);
}

export function actionBar(view, page) {
  if (view.ended || !view.actions) return null;
  if (!page.token) return h("p", { class: "hint read-only", title: "To act from here, open the link with the token that the run printed at its start." }, "Read-only");
  return h("div", { class: "actions", role: "group", "aria-label": "Actions" },
    h("button", { type: "button", onclick: () => page.act("checkpoint", {}, "A checkpoint is being taken.") }, "Checkpoint now"),
    h("button", { type: "button", onclick: () => page.ask(savepoint(page)) }, "Savepoint …"),
    h("button", { type: "button", onclick: () => page.ask(interval(view, page)) }, "Interval …"),
    h("button", { type: "button", class: "danger", onclick: () => page.ask(stop(page)) }, "Stop …"));
}

const savepoint = (page) => ({
  title: "Take a savepoint", text: "A checkpoint that is kept under a name until you delete it.", field: { name: "Name", type: "text", value: "" }, verb: "Take it",
  done: (name) => page.act("savepoint", { name }, `Savepoint ${name} is being taken.`),
});

const interval = (view, page) => ({
  title: "Change the interval", text: `Now a checkpoint is taken every ${chosen(view.interval_s)}.`, field: { name: "Seconds between checkpoints", type: "number", value: view.interval_s ?? 30 }, verb: "Change it",
  done: (value) => page.act("interval", { every: `${Number(value)}s` }, `A checkpoint every ${chosen(Number(value))} from now on.`),
});

const stop = (page) => ({
  title: "Stop the run?", text: "It takes a checkpoint and ends. The same command resumes from there.", field: null, verb: "Stop it", danger: true,
  done: () => page.act("stop", {}, "Stopping, with a checkpoint."),
});

export const killing = (worker, page) => ({
  title: `Kill worker ${worker.id}?`, text: `Process ${worker.pid} on ${worker.machine} gets SIGKILL. Watch how the run recovers.`, field: null, verb: "Kill it", danger: true,
  done: () => page.act("kill", { worker: worker.id }, `Worker ${worker.id} is killed.`),
});

export const scaling = (operator, page) => ({
  title: `How many shards for ${operator.name}?`, text: `It has ${operator.shards} now. Records in flight arrive first; then the same processes continue with the new shards.`, field: { name: "Shards", type: "number", value: operator.shards }, verb: "Change it",
  done: (value) => page.act("scale", { operator: operator.name, shards: Math.max(1, Math.round(Number(value))) }, `${operator.name} is being rescaled.`),
});

/** The open dialog, if any. */
export function dialog(question, close) {
  if (!question) return null;
  const answer = (event) => {
    event.preventDefault();
    const value = question.field ? new FormData(event.currentTarget).get("answer") : null;
    close();
    question.done(value);
  };
  return h("div", { class: "veil", key: "dialog", onclick: (event) => { if (event.target === event.currentTarget) close(); }, onkeydown: (event) => { if (event.key === "Escape") close(); } },
    h("form", { class: "card dialog", role: "dialog", "aria-modal": "true", "aria-labelledby": "question", onsubmit: answer },
      h("h2", { id: "question" }, question.title), h("p", {}, question.text),
      question.field && h("label", {}, question.field.name, h("input", { name: "answer", type: question.field.type, "data-first": question.field.value, required: true, min: question.field.type === "number" ? "0.1" : null, step: question.field.type === "number" ? "any" : null, autocomplete: "off" })),
      h("div", { class: "actions" },
        h("button", { type: "button", onclick: close }, "Cancel"),
        h("button", { type: "submit", class: question.danger ? "danger" : "main" }, question.verb))));
}
