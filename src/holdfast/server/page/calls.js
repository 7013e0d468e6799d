/** A tool call as a card: what is asked for, what it says while it runs, what came of it. The same live and in the history. */

import { difference } from "./differences.js";
import { h, replace } from "./dom.js";
import { pictures } from "./files.js";
import { copyButton, longText, sizeOf } from "./long_text.js";
import { link } from "./router.js";
import { syntheticWords, callWords, duration, plain } from "./words.js";

/** @typedef {import("../client/holdfast.js").CallView} CallView */
/** @typedef {import("../client/holdfast.js").Chat} Chat */
/** @typedef {import("../client/holdfast.js").Schemas["File"]} FileShown */
/** @typedef {import("../client/holdfast.js").Schemas["ToolResult"]} ToolResult */

const PLAN = "plan";
const TERMINALS = new Set(["shell", "start_session", "read_session", "write_session", "end_session"]);
const PLAN_MAX = 50; // steps that are shown
const TICK_MS = 1000;
const PROGRESS_CHARS = 20_000; // of what it said, its end is shown
const PLAN_MARKS = new Map([["pending", "☐"], ["in_progress", "▶"], ["done", "✓"], ["dropped", "–"]]);

/** One line of what it is asked to do. */
function brief(/** @type {string} */ text) {
  try {
    const given = JSON.parse(text);
    if (given === null || typeof given !== "object") return text;
    const values = Object.values(given).map((value) => (typeof value === "string" ? value : JSON.stringify(value)));
    return values.join(" · ");
  } catch {
    return text;
  }
}

/** Of an edit: what it changes is shown as a difference. */
function pathOf(/** @type {string} */ text) {
  const { path } = JSON.parse(text);
  return typeof path === "string" ? path : "";
}

function pretty(/** @type {string} */ text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** The steps that it gives, as far as they are some: a model may write anything. @returns {{ text: string, state: string }[]} */
function planOf(/** @type {string} */ text) {
  try {
    const { items } = JSON.parse(text);
    return Array.isArray(items) ? items.filter((item) => typeof item?.text === "string").map((item) => ({ text: item.text, state: String(item.state) })) : [];
  } catch {
    return []; // it is still being written, or no plan
  }
}

export class CallCard {
  constructor(/** @type {Chat} */ chat, /** @type {CallView} */ call) {
    this._chat = chat;
    this.call = call;
    this._synthetic = "";
    /** @type {number | null} when its deadline is, where that is known */
    this._deadline = null;
    this._shownArguments = "";
    this._shown = ""; // its state
    this._chip = h("span", { class: "chip" });
    this._time = h("span", { class: "muted small time" });
    this._brief = h("span", { class: "muted ellipsis mono brief" });
    this._link = h("span", null);
    this._progress = h("pre", { class: "progress terminal", hidden: true, tabindex: "0", "aria-label": "What it says while it runs" });
    this._arguments = h("div", { class: "arguments" });
    this._result = h("div", { class: "result" });
    this._details = h("details", null,
      h("summary", null, h("span", { class: "mono name" }, plain(call.name)), this._brief, this._time, this._chip),
      this._arguments, this._result);
    this.asking = h("div", { class: "asking" }); // what a person has to answer, put there by the view
    this._pictures = h("div", { class: "pictures" });
    this.element = h("section", { class: "call", "aria-label": `Tool ${plain(call.name)}`, data: { call: call.id } },
      this._details, this._link, this._progress, this._pictures, this.asking);
    this.show(call);
  }

  /** As it stands now. */
  show(/** @type {CallView} */ call) {
    const before = this.call;
    this.call = call;
    const state = call.state === "done" && call.error ? "error" : call.state === "planned" && !call.arguments ? "drafted" : call.state;
    const [words, kind] = callWords(state);
    this._chip.className = `chip ${kind}`;
    replace(this._chip, call.state === "started" ? h("span", { class: "dot pulse" }) : null, words);
    if (call.name === PLAN) this._showPlan();
    else if (call.arguments !== this._shownArguments) this._showArguments();
    if (call.progress !== before.progress || call === before) this._showProgress();
    if (call.result !== null && (call === before || call.result !== before.result)) this._showResult(call.result);
    if (call.child_id) replace(this._link, h("a", { class: "small child", href: link("chats", call.child_id) }, "Open the sub-agent's chat"));
    if (this._shown !== state && state === "unknown") this._details.open = true;
    this._shown = state;
    this.tick();
  }

  _showArguments() {
    const given = this.call.arguments;
    this._shownArguments = given;
    const edit = difference(this.call.name, given);
    this._brief.textContent = plain((edit ? pathOf(given) : brief(given)).slice(0, 200));
    replace(this._arguments, edit ?? (given && given !== "{}" ? longText(pretty(given)) : null));
  }

  _showPlan() {
    const items = planOf(this.call.arguments);
    if (!items.length) return this._showArguments();
    this.element.classList.add("plan");
    this._details.open = true;
    this._brief.textContent = `${items.filter(({ state }) => state === "done").length} of ${items.length} done`;
    replace(this._arguments, h("ul", { class: "plan-items" }, items.slice(0, PLAN_MAX).map(({ text, state }) =>
      h("li", { class: PLAN_MARKS.has(state) ? state : null }, h("span", { "aria-hidden": "true" }, PLAN_MARKS.get(state) ?? "☐"), ` ${plain(text)}`,
        h("span", { class: "sr" }, ` (${plain(state).replace("_", " ")})`)))));
  }

  _showProgress() {
    const text = this.call.progress;
    this._progress.hidden = !text || this.call.result !== null;
    if (this._progress.hidden) return;
    const atEnd = this._progress.scrollHeight - this._progress.scrollTop - this._progress.clientHeight < 30;
    this._progress.textContent = text.slice(-PROGRESS_CHARS);
    if (atEnd) this._progress.scrollTop = this._progress.scrollHeight;
  }

  _showResult(/** @type {string} */ result) {
    this._progress.hidden = true;
    if (this.call.name === PLAN && !this.call.error) return;
    const words = syntheticWords(this._synthetic) ?? (this.call.state === "unknown" ? syntheticWords("unknown") : null);
    const terminal = TERMINALS.has(this.call.name) ? "terminal" : "";
    replace(this._result,
      words ? h("p", { class: `notice ${this.call.state === "unknown" ? "bad" : "warn"}` }, words) : null,
      h("div", { class: "row" }, h("span", { class: "muted small" }, this.call.error ? "Error" : "Result", result ? `, ${sizeOf(result)}` : ", nothing said"),
        result ? copyButton(() => result) : null),
      result ? longText(result, terminal) : null);
  }

  /** The result as its message tells it: with files, and why the runtime wrote it. */
  finish(/** @type {ToolResult} */ part, /** @type {string | null} */ state, /** @type {number} */ at) {
    this._synthetic = part.synthetic ?? "";
    const ended = state ?? (part.synthetic === "unknown" ? "unknown" : part.synthetic === "denied" ? "denied" : part.synthetic === "cancelled" ? "cancelled" : "done");
    this.show({ ...this.call, state: /** @type {any} */ (ended), result: part.content ?? "", error: part.error ?? false, ended_at: this.call.ended_at ?? at, kind: null });
    this.files(part.files ?? []);
  }

  files(/** @type {readonly FileShown[]} */ files) {
    replace(this._pictures, pictures(this._chat, files));
  }

  deadline(/** @type {number | null} */ at) {
    this._deadline = at;
    this.tick();
  }

  /** Time passes. */
  tick() {
    const { began_at: began, ended_at: ended, state } = this.call;
    if (began === null) {
      this._time.textContent = "";
      return;
    }
    const upto = ended ?? (state === "started" ? Date.now() : began);
    const left = state === "started" && this._deadline !== null ? ` of ${duration(this._deadline - began)}` : "";
    this._time.textContent = upto > began || ended ? `${duration(upto - began)}${left}` : "";
  }
}

/** Lets the time of running calls pass. */
export function ticking(/** @type {Map<string, CallCard>} */ cards, /** @type {AbortSignal} */ signal) {
  const timer = setInterval(() => {
    if (document.hidden) return;
    for (const card of cards.values()) if (card.call.state === "started") card.tick();
  }, TICK_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}
