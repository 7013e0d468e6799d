/**
 * The history of a chat, however long: a place of its own for each page of it, which is filled while it is near to what is
 * seen and emptied when it is far away. So a chat of 20,000 messages opens at once, at its end, and its scroll bar is true.
 */

import { newCall } from "../client/holdfast.js";
import { h, replace } from "./dom.js";
import { ResponseView, userMessage } from "./message.js";
import { when } from "./words.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("../client/holdfast.js").Chat} Chat */
/** @typedef {import("./calls.js").CallCard} CallCard */
/** @typedef {import("../client/holdfast.js").Schemas["CompactionShown"]} Compaction */
/** @typedef {import("../client/holdfast.js").Schemas["HistoryMessage"] & { html?: string }} HistoryMessage */

const PAGE = 40; // positions
const NEAR = "1200px 0px";
const GUESS_PX = 90; // of a message that was not seen yet

/**
 * What is between two positions, with its HTML, in however many answers.
 * @returns {Promise<{ messages: HistoryMessage[], compactions: Compaction[] }>}
 */
export async function historyOf(/** @type {Chat} */ chat, /** @type {number} */ start, /** @type {number} */ end, /** @type {AbortSignal} */ signal) {
  const found = { messages: /** @type {HistoryMessage[]} */ ([]), compactions: /** @type {Compaction[]} */ ([]) };
  while (start < end) {
    const { messages, next, compactions } = await chat.messages({ start, limit: end - start, render: "html", signal });
    found.messages.push(.../** @type {HistoryMessage[]} */ (messages));
    found.compactions.push(...compactions);
    if (next === null) break;
    start = next;
  }
  return found;
}

/** What a model was given in place of what stands before it. */
export function compactionFold(/** @type {string} */ words, /** @type {{ summary: string, upto: number }} */ { summary, upto }) {
  return h("details", { class: "compaction", data: { upto } }, h("summary", null, words), h("div", { class: "words", dir: "auto" }, summary));
}

/** One page: its place in the history, and whether it is filled. */
class HistoryPage {
  constructor(/** @type {number} */ start, /** @type {number} */ end) {
    this.start = start;
    this.end = end;
    this.near = false;
    this.filled = false;
    this.busy = false;
    /** @type {string[]} the calls whose results it brought */
    this.results = [];
    this.element = h("div", { class: "page", "aria-busy": "true" });
    this.element.style.minHeight = `${(end - start) * GUESS_PX}px`;
  }
}

export class History {
  constructor(
    /** @type {Context} */ context, /** @type {Chat} */ chat,
    /** @type {import("./message.js").Actions} */ actions, /** @type {HTMLElement} */ scroller,
  ) {
    this._context = context;
    this._chat = chat;
    /** @type {Map<string, CallCard>} */
    this._cards = new Map();
    this._actions = actions;
    this.element = h("div", { class: "history" });
    /** @type {Map<Element, HistoryPage>} */
    this._pages = new Map();
    /** @type {Map<string, { part: any, at: number }>} results whose calls are on a page that is not filled */
    this._results = new Map();
    /** @type {Set<string>} messages that the live part shows */
    this._elsewhere = new Set();
    /** @type {Set<number>} and compactions, by where they end */
    this._foldedElsewhere = new Set();
    this._length = 0;
    this._observer = new IntersectionObserver((seen) => this._moved(seen), { root: scroller, rootMargin: NEAR });
    context.signal.addEventListener("abort", () => this._observer.disconnect());
  }

  /** So many positions, of which none was read yet. */
  begin(/** @type {number} */ length) {
    this._observer.disconnect();
    this._length = length;
    this._pages.clear();
    this.element.replaceChildren();
    for (let start = 0; start < length; start += PAGE) {
      const page = new HistoryPage(start, Math.min(length, start + PAGE));
      this._pages.set(page.element, page);
      this.element.append(page.element);
      this._observer.observe(page.element);
    }
  }

  /** A message is shown below: not here. */
  leave(/** @type {string} */ id) {
    this._elsewhere.add(id);
    this.element.querySelector(`[data-id="${CSS.escape(id)}"]`)?.remove();
  }

  /** A compaction that ends there is shown below. */
  leaveCompaction(/** @type {number} */ upto) {
    this._foldedElsewhere.add(upto);
    this.element.querySelector(`.compaction[data-upto="${upto}"]`)?.remove();
  }

  _moved(/** @type {IntersectionObserverEntry[]} */ seen) {
    for (const { target, isIntersecting } of seen) {
      const page = this._pages.get(target);
      if (!page) continue;
      page.near = isIntersecting;
      if (isIntersecting) void this._fill(page);
      else this._empty(page);
    }
  }

  async _fill(/** @type {HistoryPage} */ page) {
    if (page.filled || page.busy) return;
    page.busy = true;
    try {
      const { messages, compactions } = await this._read(page.start, page.end);
      for (const message of await this._resultsBehind(page, messages)) this._finish(page, message);
      if (!page.near || this._context.signal.aborted) return;
      replace(page.element, this._elements(page, messages, compactions));
      page.element.style.minHeight = "";
      page.element.removeAttribute("aria-busy");
      page.filled = true;
    } catch (error) {
      if (this._context.signal.aborted) return;
      const again = h("button", { type: "button", class: "button", on: { click: () => void this._fill(page) } }, "Try again");
      replace(page.element, h("p", { class: "notice bad" }, "These messages could not be read. ", again));
    } finally {
      page.busy = false;
    }
  }

  /** Calls keep places behind them for their results, up to a whole batch: those that are on the pages behind this one. */
  async _resultsBehind(/** @type {HistoryPage} */ page, /** @type {HistoryMessage[]} */ messages) {
    const open = new Set(messages.flatMap(({ parts }) => parts.flatMap((part) => (part.kind === "tool_call" ? [part.call_id] : []))));
    for (const { parts } of messages) for (const part of parts) if (part.kind === "tool_result") open.delete(part.call_id);
    const behind = open.size && page.end < this._length ? (await this._read(page.end, Math.min(this._length, page.end + open.size))).messages : [];
    return behind.filter(({ role }) => role === "tool");
  }

  _read(/** @type {number} */ start, /** @type {number} */ end) {
    return historyOf(this._chat, start, end, this._context.signal);
  }

  /** Far away: its height stays. Not while somebody is in it, by keyboard or with a selection. */
  _empty(/** @type {HistoryPage} */ page) {
    if (!page.filled || page.element.contains(document.activeElement)) return;
    page.element.style.minHeight = `${page.element.offsetHeight}px`;
    for (const card of page.element.querySelectorAll("[data-call]")) this._cards.delete(/** @type {HTMLElement} */ (card).dataset.call ?? "");
    for (const id of page.results.splice(0)) this._results.delete(id); // it brings them again
    page.element.replaceChildren();
    page.filled = false;
  }

  _elements(/** @type {HistoryPage} */ page, /** @type {HistoryMessage[]} */ messages, /** @type {Compaction[]} */ compactions) {
    /** @type {Node[]} */
    const made = [];
    const folds = compactions.filter(({ upto }) => !this._foldedElsewhere.has(upto));
    const fold = (/** @type {number} */ pos) => {
      while (folds.length && folds[0].upto <= pos) made.push(pastCompaction(/** @type {Compaction} */ (folds.shift())));
    };
    for (const message of messages) {
      fold(message.pos);
      if (message.role === "tool") this._finish(page, message);
      else if (this._elsewhere.has(message.id)) continue;
      else if (message.role === "user") made.push(userMessage(this._chat, message, this._actions));
      else if (message.role === "assistant") made.push(this._response(message));
    }
    fold(page.end);
    return made;
  }

  _response(/** @type {HistoryMessage} */ message) {
    const view = new ResponseView(this._chat, this._cards, this._actions);
    view.commit(message, message.html ?? null);
    for (const part of message.parts) {
      if (part.kind !== "tool_call") continue;
      const card = view.card(newCall(part.call_id, part.name, { arguments: part.arguments ?? "" }));
      const result = this._results.get(part.call_id);
      if (result) card.finish(result.part, null, result.at);
    }
    return view.element;
  }

  _finish(/** @type {HistoryPage} */ page, /** @type {HistoryMessage} */ message) {
    for (const part of message.parts) {
      if (part.kind !== "tool_result") continue;
      const at = message.created_at ?? 0;
      this._results.set(part.call_id, { part, at });
      page.results.push(part.call_id);
      this._cards.get(part.call_id)?.finish(part, null, at);
    }
  }
}

function pastCompaction(/** @type {Compaction} */ one) {
  return compactionFold(`What is above was summarised for the model, ${when(one.created_at)}`, one);
}
