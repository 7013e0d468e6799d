/** Everything that waits for a person, or a client, in all chats that one sees: answered here, by hand or by keys. */

import { askingCard, cardOf } from "./asking.js";
import { button, h, replace } from "./dom.js";
import { poll } from "./poll.js";
import { link } from "./router.js";
import { ago, clock, plain } from "./words.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("../client/holdfast.js").Schemas["OpenCallListed"]} Listed */
/** @typedef {Listed["kind"]} Kind */

const LOOK_MS = 3000;
const PAGE = 50;
const LIMIT_MAX = 500;
const ANSWERED_MS = 5000;
const OPENING_CHARS = 100;
const KINDS = /** @type {const} */ ([["", "All"], ["approval", "Approvals"], ["question", "Questions"], ["client", "For programs"]]);
/** @type {Record<Kind, [string, string]>} */
const WORDS = { approval: ["approval", "warn"], question: ["question", "info"], client: ["for a program", ""] };

export function show(/** @type {Context} */ context) {
  const inbox = new Inbox(context);
  return { title: "Inbox", element: inbox.element, close: () => {} };
}

class Inbox {
  constructor(/** @type {Context} */ context) {
    this._context = context;
    /** @type {"" | Kind} */
    this._kind = "";
    this._limit = PAGE;
    /** @type {Map<string, { item: HTMLElement, card: HTMLElement, since: HTMLElement, call: Listed }>} */
    this._items = new Map();
    /** @type {Map<string, number>} */
    this._answered = new Map();
    this._list = h("ul", { class: "inbox", "aria-label": "What waits for you", "aria-describedby": "inbox-keys",
      on: { keydown: (/** @type {KeyboardEvent} */ event) => this._key(event) } });
    this._state = h("div", { "aria-live": "polite" }, h("div", { class: "empty" }, h("p", null, "Looking…")));
    this._more = button("Show more", () => {
      this._limit = Math.min(LIMIT_MAX, this._limit + PAGE);
      this._look();
    });
    this._more.hidden = true;
    this._count = h("span", { class: "muted" });
    this._hints = hints(context.may("approve"));
    this._hints.hidden = true;
    this.element = h("div", { class: "view" },
      h("header", { class: "view-head" },
        h("div", { class: "row" }, h("a", { class: "button quiet menu-button", href: "#/" }, "Menu"), h("h1", null, "Inbox"), this._count),
        this._kinds()),
      this._hints, this._state, this._list, this._more);
    this._look = poll(LOOK_MS, () => this._refresh(), context.signal);
    const tick = setInterval(() => this._tick(), 5000);
    context.signal.addEventListener("abort", () => clearInterval(tick), { once: true });
  }

  _kinds() {
    return h("fieldset", { class: "segments" }, h("legend", { class: "sr" }, "Show"), KINDS.map(([kind, words]) =>
      h("label", null, h("input", { type: "radio", name: "kind", class: "sr", checked: kind === "", on: { change: () => {
        this._kind = kind;
        this._look();
      } } }), h("span", null, words))));
  }

  async _refresh() {
    const kind = this._kind || undefined;
    try {
      const page = await this._context.client.openCalls({ kind, limit: this._limit, signal: this._context.signal });
      if ((this._kind || undefined) !== kind) return;
      this._show(page.calls, page.next !== null);
      if (!kind) this._context.waiting(page.calls.length, page.next !== null);
    } catch (error) {
      if (this._context.signal.aborted) return;
      if (!this._items.size) replace(this._state, failed(error));
      throw error;
    }
  }

  _show(/** @type {Listed[]} */ calls, /** @type {boolean} */ more) {
    const found = new Map(calls.map((call) => [`${call.chat_id}/${call.call_id}`, call]));
    for (const [key, at] of this._answered) { // a look that began before the answer still finds it
      if (Date.now() - at < ANSWERED_MS) found.delete(key);
      else this._answered.delete(key);
    }
    for (const [key, { item }] of this._items) if (!found.has(key)) this._remove(key, item);
    /** @type {Element | null} */
    let before = null;
    for (const [key, call] of found) {
      const item = this._items.get(key)?.item ?? this._add(key, call);
      /** @type {Element | null} */
      const place = before === null ? this._list.firstElementChild : before.nextElementSibling;
      if (place !== item) this._list.insertBefore(item, place);
      before = item;
    }
    this._more.hidden = !more || this._limit >= LIMIT_MAX;
    this._tell(more);
  }

  _tell(/** @type {boolean} */ more) {
    const count = this._items.size;
    this._hints.hidden = !count;
    replace(this._count, count ? `${count}${more ? "+" : ""} waiting` : "");
    if (count) replace(this._state);
    else if (this._shownNothing !== this._kind || !this._state.querySelector(".nothing")) replace(this._state, nothing(this._kind));
    this._shownNothing = this._kind;
    this._rove();
  }

  _add(/** @type {string} */ key, /** @type {Listed} */ call) {
    const chat = this._context.client.chat(call.chat_id);
    const card = askingCard(this._context, chat, call, { onanswered: () => {
      this._answered.set(key, Date.now());
      this._remove(key, item);
      this._tell(!this._more.hidden);
      this._context.changed();
      this._look();
    } });
    const since = h("time", { class: "muted small", title: call.asked_at ? clock(call.asked_at) : "" }, call.asked_at ? ago(call.asked_at) : "");
    const [words, tone] = WORDS[call.kind];
    const item = h("li", { class: "card inbox-item", tabindex: "-1", data: { key }, "aria-label": `${words}: ${plain(call.name)}, ${this._named(call)}` },
      h("div", { class: "inbox-head" },
        h("span", { class: `chip ${tone}` }, words), h("code", { class: "ellipsis" }, plain(call.name)),
        h("a", { class: "inbox-chat ellipsis grow", href: link("chats", call.chat_id) }, this._named(call)), since),
      card);
    this._items.set(key, { item, card, since, call });
    return item;
  }

  /** The chat that it is in, as people know it. */
  _named(/** @type {Listed} */ call) {
    const whose = this._context.me.owner === null && call.owner ? ` · ${plain(call.owner)}` : "";
    const words = call.title || call.opening?.slice(0, OPENING_CHARS);
    return `${words ? `${plain(words)} · ` : ""}${plain(call.agent)}${call.parent_id ? " (sub-agent)" : ""}${whose}`;
  }

  _remove(/** @type {string} */ key, /** @type {HTMLElement} */ item) {
    const had = item.contains(document.activeElement);
    const next = /** @type {HTMLElement | null} */ (item.nextElementSibling ?? item.previousElementSibling);
    this._items.delete(key);
    item.remove();
    if (had) (next ?? /** @type {HTMLElement} */ (this.element.querySelector("input[name=kind]:checked")))?.focus();
  }

  _tick() {
    for (const { since, call } of this._items.values()) if (call.asked_at) since.textContent = ago(call.asked_at);
  }

  // --- keys: those of the list, while one of its lines has the focus ----------------------------------

  /** One line can be reached by Tab: the one that had the focus last. */
  _rove() {
    const items = /** @type {HTMLElement[]} */ ([...this._list.children]);
    const now = items.find((item) => item.tabIndex === 0) ?? items[0];
    for (const item of items) item.tabIndex = item === now ? 0 : -1;
  }

  _key(/** @type {KeyboardEvent} */ event) {
    const item = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (item.parentElement !== this._list) { // in a field or on a button: what is typed there is meant for it
      if (event.key === "Escape") /** @type {HTMLElement | null} */ (item.closest(".inbox-item"))?.focus();
      return;
    }
    const known = this._items.get(item.dataset.key ?? "");
    const card = known ? cardOf(known.card) : null;
    if (!known || !card) return;
    const run = {
      j: () => this._move(item, item.nextElementSibling), ArrowDown: () => this._move(item, item.nextElementSibling),
      k: () => this._move(item, item.previousElementSibling), ArrowUp: () => this._move(item, item.previousElementSibling),
      a: () => card.approve(), d: () => card.deny(), r: () => card.focus(),
      Enter: () => this._context.go(link("chats", known.call.chat_id)),
    }[event.key];
    if (!run) return;
    event.preventDefault();
    run();
  }

  _move(/** @type {HTMLElement} */ from, /** @type {Element | null} */ to) {
    if (!(to instanceof HTMLElement)) return;
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
    to.scrollIntoView({ block: "nearest" });
  }
}

function hints(/** @type {boolean} */ mayApprove) {
  const keys = [["j", "k", "move"], ...(mayApprove ? [["a", "approve"], ["d", "deny"]] : []), ["r", "reply"], ["Enter", "open the chat"]];
  return h("p", { class: "keys muted small", id: "inbox-keys" }, h("span", null, "With the focus in the list:"), keys.map((key) =>
    h("span", null, key.slice(0, -1).map((name) => h("kbd", null, name)), ` ${key.at(-1)}`)));
}

function nothing(/** @type {string} */ kind) {
  return h("div", { class: "empty nothing" }, h("div", { class: "empty-mark", "aria-hidden": "true" }, "✓"),
    h("h2", null, kind ? "Nothing of this kind waits" : "Nothing waits for you"),
    h("p", null, "Approvals and questions of all chats come here by themselves, as they are asked."));
}

function failed(/** @type {unknown} */ error) {
  const words = error instanceof Error && "status" in error && error.status === 403
    ? "Your token may not read chats." : "What waits could not be read. Trying again…";
  return h("div", { class: "empty" }, h("h2", null, "Nothing to show"), h("p", null, words));
}
