/** The sub-agents of a chat, at any depth: links with their state, and what the family has taken. */

import { h, replace } from "./dom.js";
import { link } from "./router.js";
import { count, money, plain, stateWords } from "./words.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("../client/holdfast.js").Chat} Chat */
/** @typedef {import("../client/holdfast.js").Schemas["SubAgentShown"]} SubAgent */

const LOOK_MS = 3000;

export class ChildrenView {
  constructor(/** @type {Context} */ context, /** @type {Chat} */ chat) {
    this._context = context;
    this._chat = chat;
    this._words = h("summary", null);
    this._list = h("ul", { class: "children-list" });
    this.element = h("details", { class: "children", hidden: true }, this._words, this._list);
  }

  /** Now, and again while one of them is at work. */
  async look() {
    clearTimeout(this._timer);
    const { signal } = this._context;
    if (signal.aborted) return;
    const children = await this._chat.children({ deep: true, signal }).catch(() => null);
    if (signal.aborted) return;
    if (children) this._show(children);
    if (!children || children.some(({ state }) => state !== "idle" && state !== "failed")) this._timer = setTimeout(() => void this.look(), LOOK_MS);
  }

  _show(/** @type {SubAgent[]} */ children) {
    this.element.hidden = !children.length;
    const working = children.filter(({ state }) => state === "running" || state === "stopping").length;
    const tokens = children.reduce((sum, child) => sum + child.tokens, 0);
    const cost = children.reduce((sum, child) => sum + child.cost, 0);
    const spent = [tokens ? `${count(tokens)} tokens` : "", cost ? money(cost) : ""].filter(Boolean).join(", ");
    this._words.textContent = `${children.length} sub-agent${children.length === 1 ? "" : "s"}${working ? `, ${working} at work` : ""}${spent ? ` · ${spent}` : ""}`;
    replace(this._list, children.map(line));
  }
}

function line(/** @type {SubAgent} */ child) {
  const [words, kind] = stateWords(child.state);
  return h("li", { class: `depth-${Math.min(child.depth, 4)}` },
    h("a", { class: "grow ellipsis", href: link("chats", child.chat_id) }, `${plain(child.agent)}: ${plain(child.title ?? child.task)}`),
    h("span", { class: "muted small" }, child.tokens ? `${count(child.tokens)} tokens` : ""),
    h("span", { class: `chip ${kind}` }, h("span", { class: `dot ${child.state === "running" ? "pulse" : ""}` }), words));
}
