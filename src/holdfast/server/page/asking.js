/** What a person is asked, and the controls to answer it: the same in a chat and in the inbox. */

import { button, h, replace } from "./dom.js";
import { longText } from "./long_text.js";
import { duration, plain } from "./words.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("../client/holdfast.js").Chat} Chat */
/** @typedef {import("../client/holdfast.js").CallView} CallView */
/** @typedef {import("../client/holdfast.js").OpenCall} OpenCall */
/** @typedef {"approve" | "deny" | "answer"} Verb */

const ROWS_MAX = 40;
const INLINE_CHARS = 80;
const HURRY_MS = 60_000;
const LIFETIMES = /** @type {const} */ ([["until revoked", 0], ["for an hour", 3600], ["for a day", 86_400], ["for a week", 604_800]]);
const SCOPES = /** @type {const} */ ([["chat", "in this chat"], ["agent", "in all chats of this agent"], ["owner", "in all chats of this owner"]]);
const DONE = { approve: "Approved.", deny: "Denied.", answer: "Answered." };

/** @type {WeakMap<HTMLElement, Asking>} */
const CARDS = new WeakMap();

/**
 * Of a call that `openCalls` listed, or that a stream told of. `onanswered` is told how, once the server has it.
 * @param {Context} context
 * @param {Chat} chat
 * @param {CallView | OpenCall} call
 * @param {{ onanswered?: (verb: Verb) => void }} [options]
 * @returns {HTMLElement}
 */
export function askingCard(context, chat, call, { onanswered } = {}) {
  return new Asking(context, chat, call, onanswered).element;
}

/** The card behind an element of `askingCard`, for a view that has keys for it. */
export function cardOf(/** @type {HTMLElement} */ element) {
  return CARDS.get(element) ?? null;
}

class Asking {
  constructor(
    /** @type {Context} */ context, /** @type {Chat} */ chat, /** @type {CallView | OpenCall} */ call,
    /** @type {((verb: Verb) => void) | undefined} */ onanswered,
  ) {
    this._context = context;
    this._chat = chat;
    this._call = call;
    this._onanswered = onanswered;
    /** @type {OpenCall | null} what the server says of it; a stream tells less */
    this._full = "digest" in call ? call : null;
    this._busy = false;
    this._arguments = h("div", { class: "asked-arguments" });
    this._expiry = h("span", { class: "chip", hidden: true });
    this._controls = h("div", { class: "asked-controls" });
    this._error = h("p", { class: "asked-error", role: "alert", hidden: true });
    this.element = h("div", { class: "asked", role: "group", "aria-label": `${plain(call.name)} asks` },
      this._head(), this._arguments, this._controls, this._error);
    CARDS.set(this.element, this);
    this._show();
    if (!this._full) void this._load();
    const tick = setInterval(() => this._tick(), 1000);
    context.signal.addEventListener("abort", () => clearInterval(tick), { once: true });
    this._tick();
  }

  _head() {
    const words = this._call.question ?? (this._call.kind === "client" ? `${this._call.name} is to be run by a program of yours` : `May it run ${this._call.name}?`);
    return h("div", { class: "asked-head" }, h("p", { class: "asked-question", dir: "auto" }, visible(words)), this._expiry);
  }

  /** All of it: the arguments as they would run, their digest, what "always" would keep. */
  async _load() {
    try {
      this._full = await this._chat.openCall(this._call, { signal: this._context.signal });
      this._show();
      return true;
    } catch (error) {
      if (this._context.signal.aborted) return false;
      this._fail(error);
      return false;
    }
  }

  _show() {
    const { kind } = this._call;
    const may = this._context.may(kind === "approval" ? "approve" : "chat");
    const more = kind === "approval" && may ? null : button("Show all of it", () => void this._load(), "quiet"); // else the control does
    if (kind !== "question") replace(this._arguments, this._hidden ? excerptOf(this._full ?? this._call, more) : argumentsOf(this._full ?? this._call));
    if (!may) replace(this._controls, h("p", { class: "muted small" }, `Your token may look, and not ${kind === "approval" ? "approve" : "answer"}.`));
    else replace(this._controls, kind === "approval" ? this._approval() : kind === "question" ? this._question() : this._result());
    this._tick();
  }

  /** A part of what would run was not shown yet. */
  get _hidden() {
    return this._full !== null && !this._full.whole;
  }

  _tick() {
    const at = this._full?.expires_at ?? this._call.expires_at ?? null;
    this._expiry.hidden = at === null;
    if (at === null) return;
    const left = at - Date.now();
    this._expiry.className = `chip ${left < HURRY_MS ? "bad" : "warn"}`;
    const words = left <= 0 ? "its time is up" : `${duration(left < HURRY_MS ? Math.ceil(left / 1000) * 1000 : left)} left`;
    if (this._expiry.textContent !== words) this._expiry.textContent = words;
  }

  // --- the three ways to answer ---------------------------------------------------------------------

  _approval() {
    const offer = this._full?.offer ?? [];
    const panel = h("div", { class: "asked-panel", hidden: true });
    const toggle = (/** @type {HTMLElement} */ made) => {
      replace(panel, made);
      panel.hidden = false;
      /** @type {HTMLElement | null} */ (panel.querySelector("input, button"))?.focus();
    };
    this._openDeny = () => toggle(this._denial(panel));
    const approve = this._hidden
      ? button("Show all of it, then approve", () => void this._load().then(() => this.focus()), "primary")
      : button("Approve", () => this.approve(), "primary", { disabled: this._full === null });
    return h("div", null,
      h("div", { class: "row" }, approve, button("Deny…", () => this.deny(), "danger"),
        offer.length && !this._hidden ? button("Always…", () => toggle(this._always(panel, offer)), "") : null),
      panel);
  }

  _denial(/** @type {HTMLElement} */ panel) {
    const words = h("input", { class: "field", "aria-label": "Why not", placeholder: "Why not? The model reads it; it may be left empty" });
    const form = h("form", { class: "row nowrap", on: {
      submit: (/** @type {Event} */ event) => {
        event.preventDefault();
        void this._do("deny", () => this._chat.deny(this._target, words.value));
      },
      keydown: (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && this._close(panel),
    } }, words, h("button", { class: "button danger" }, "Deny"));
    return form;
  }

  _always(/** @type {HTMLElement} */ panel, /** @type {string[]} */ offer) {
    const scopes = this._context.me.chat === null ? SCOPES : SCOPES.slice(0, 1);
    const scope = h("select", { class: "field", "aria-label": "Where" }, scopes.map(([value, words]) => h("option", { value }, words)));
    const lifetime = h("select", { class: "field", "aria-label": "For how long" }, LIFETIMES.map(([words, s]) => h("option", { value: s }, words)));
    return h("form", { class: "asked-always", on: {
      submit: (/** @type {Event} */ event) => {
        event.preventDefault();
        const for_s = Number(lifetime.value);
        const always = /** @type {"chat" | "agent" | "owner"} */ (scope.value);
        void this._do("approve", () => this._chat.approve(this._target, { always, ...(for_s ? { for_s } : {}) }));
      },
      keydown: (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && this._close(panel),
    } },
    h("p", { class: "small" }, "Approve this call, and from now on do not ask for what these rules say:"),
    h("ul", { class: "asked-rules" }, offer.map((rule) => h("li", null, h("code", { class: "break" }, plain(rule))))),
    h("div", { class: "row" }, scope, lifetime, h("button", { class: "button primary" }, "Approve, and always")));
  }

  _question() {
    const field = this._field("Your answer", () => form.requestSubmit());
    const form = h("form", { class: "row nowrap", on: { submit: (/** @type {Event} */ event) => {
      event.preventDefault();
      if (field.value.trim()) void this._do("answer", () => this._chat.answer(this._target, field.value));
    } } }, field, h("button", { class: "button primary" }, "Answer"));
    return form;
  }

  _result() {
    const field = this._field("The result", () => form.requestSubmit());
    const failed = h("input", { type: "checkbox" });
    const form = h("form", { on: { submit: (/** @type {Event} */ event) => {
      event.preventDefault();
      void this._do("answer", () => this._chat.answer(this._target, field.value, { error: failed.checked }));
    } } }, h("div", { class: "row nowrap" }, field, h("button", { class: "button" }, "Give the result")),
    h("label", { class: "row" }, failed, "it failed"));
    return h("details", null, h("summary", { class: "muted small" }, "A program of yours runs this tool. Give the result in its place"), form);
  }

  /** Enter sends, Shift and Enter is a new line. */
  _field(/** @type {string} */ label, /** @type {() => void} */ send) {
    return h("textarea", { class: "field", rows: 1, "aria-label": label, placeholder: label, on: { keydown: (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      send();
    } } });
  }

  // --- what is done ---------------------------------------------------------------------------------

  /** With the digest of what was shown: refused where something else would run by now. */
  get _target() {
    const id = "call_id" in this._call ? this._call.call_id : this._call.id;
    const digest = this._full?.digest;
    return { call_id: id, chat_id: this._call.chat_id ?? this._chat.id, ...(digest ? { digest } : {}) };
  }

  /** Where it is an approval, and all of it is shown. Else what is missing gets the focus. */
  approve() {
    if (this._call.kind !== "approval" || !this._context.may("approve")) return this.focus();
    if (this._full === null || this._hidden) return void this._load().then(() => this.focus());
    void this._do("approve", () => this._chat.approve(this._target));
  }

  /** Asks for the words first. */
  deny() {
    if (this._openDeny) this._openDeny();
    else this.focus();
  }

  /** The first control. */
  focus() {
    /** @type {HTMLElement | null} */ (this._controls.querySelector("textarea, input, button, summary"))?.focus();
  }

  _close(/** @type {HTMLElement} */ panel) {
    panel.hidden = true;
    this.focus();
  }

  async _do(/** @type {Verb} */ verb, /** @type {() => Promise<unknown>} */ work) {
    if (this._busy) return;
    this._setBusy(true);
    this._error.hidden = true;
    try {
      await work();
      const had = this.element.contains(document.activeElement);
      this._onanswered?.(verb);
      const done = h("p", { class: "muted", role: "status", tabindex: "-1" }, DONE[verb]);
      replace(this._controls, done);
      if (had && this.element.isConnected) done.focus();
    } catch (error) {
      if (this._context.signal.aborted) return;
      this._fail(error);
    } finally {
      this._setBusy(false);
    }
  }

  _setBusy(/** @type {boolean} */ busy) {
    this._busy = busy;
    this.element.setAttribute("aria-busy", String(busy));
    for (const control of this._controls.querySelectorAll("button")) control.setAttribute("aria-disabled", String(busy)); // it keeps the focus
  }

  _fail(/** @type {unknown} */ error) {
    const gone = error instanceof Error && "status" in error && error.status === 404;
    this._error.textContent = gone ? "It does not wait any more: it was answered elsewhere, or its turn has ended."
      : `It was not answered: ${error instanceof Error ? plain(error.message) : "it went wrong"}`;
    this._error.hidden = false;
  }
}

/** With its lines, and with whatever would not be seen. */
function visible(/** @type {string} */ text) {
  return text.split("\n").map(plain).join("\n");
}

/** Where only the beginning is known here. `more` gets the rest. */
function excerptOf(/** @type {CallView | OpenCall} */ call, /** @type {HTMLElement | null} */ more) {
  return h("div", null, h("pre", { class: "long", tabindex: "0", dir: "auto" }, visible(call.arguments)), more);
}

/** The arguments, name by name. */
function argumentsOf(/** @type {CallView | OpenCall} */ call) {
  const given = parsed(call.arguments);
  if (given === null) return call.arguments ? longText(visible(call.arguments)) : null;
  const rows = Object.entries(given);
  if (!rows.length) return null;
  return h("dl", { class: "pairs" }, rows.slice(0, ROWS_MAX).flatMap(([name, value]) => [h("dt", null, plain(name)), h("dd", null, shown(value))]),
    rows.length > ROWS_MAX ? [h("dt", null, "…"), h("dd", null, longText(visible(call.arguments)))] : []);
}

function shown(/** @type {unknown} */ value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return text.length <= INLINE_CHARS && !text.includes("\n") ? h("code", { class: "break", dir: "auto" }, plain(text)) : longText(visible(text));
}

/** @returns {Record<string, unknown> | null} */
function parsed(/** @type {string} */ text) {
  try {
    const found = JSON.parse(text);
    return found !== null && typeof found === "object" && !Array.isArray(found) ? found : null;
  } catch {
    return null;
  }
}
