/** Messages: what people said, and what a model answered, streamed or whole. */

import { CallCard } from "./calls.js";
import { h, replace } from "./dom.js";
import { pictures } from "./files.js";
import { fragmentOf } from "./html.js";
import { copyButton, longText } from "./long_text.js";
import { causeWords, clock, count, plain, when } from "./words.js";

/** @typedef {import("../client/holdfast.js").Chat} Chat */
/** @typedef {import("../client/holdfast.js").CallView} CallView */
/** @typedef {import("../client/holdfast.js").Schemas["Message"]} Message */
/** @typedef {{ user?: (message: Message) => Node[], model?: (id: string) => Node[] }} Actions what can be done with a message: buttons */

const INLINE_CHARS = 20_000;

/** What a person said. */
export function userMessage(
  /** @type {Chat} */ chat, /** @type {Message} */ message, /** @type {Actions} */ actions, at = message.created_at ?? 0,
) {
  const words = textOf(message);
  const files = message.parts.flatMap((part) => (part.kind === "file" ? [part] : []));
  const by = message.synthetic ? "Written by the runtime" : "You";
  return h("article", { class: "message user", data: { id: message.id }, "aria-label": by },
    h("div", { class: "bubble" },
      message.synthetic ? h("p", { class: "muted small" }, by) : null,
      words.length > INLINE_CHARS ? longText(words) : words ? h("div", { class: "words", dir: "auto" }, words) : null,
      expansions(message),
      pictures(chat, files)),
    h("div", { class: "message-foot" }, at ? h("time", { class: "muted small", datetime: new Date(at).toISOString(), title: clock(at) }, when(at)) : null,
      copyButton(() => words), actions.user?.(message) ?? []));
}

/** What a slash command stood for when the message was accepted: the model read it with the message. */
function expansions(/** @type {Message} */ message) {
  return message.parts.flatMap((part) => part.kind === "expansion"
    ? [h("details", { class: "expansion" }, h("summary", { class: "muted small" }, `${plain(part.source)} ${plain(part.name)}, as the model read it`), longText(part.text))] : []);
}

export function textOf(/** @type {Message} */ message) {
  return message.parts.map((part) => (part.kind === "text" ? part.text : "")).join("");
}

/** What a model answers: blocks of HTML as they grow, its reasoning, its calls. */
export class ResponseView {
  constructor(/** @type {Chat} */ chat, /** @type {Map<string, CallCard>} */ cards, /** @type {Actions} */ actions) {
    this._chat = chat;
    this._cards = cards;
    this._actions = actions;
    this._body = h("div", { class: "prose", dir: "auto" });
    this._reasoning = h("details", { class: "reasoning", hidden: true }, h("summary", null, "Reasoning"));
    this._thought = h("div", { class: "words muted", dir: "auto" });
    this._reasoning.append(this._thought);
    this._calls = h("div", { class: "calls" });
    this._foot = h("div", { class: "message-foot" });
    this.element = h("article", { class: "message model", "aria-label": "Answer" }, this._reasoning, this._body, this._calls, this._foot);
    /** @type {number | null} the attempt whose blocks are shown */
    this._attempt = null;
    /** @type {{ attempt: number, blocks: HTMLElement[] } | null} one that has not said anything new yet */
    this._next = null;
    /** @type {HTMLElement[]} */
    this._blocks = [];
    this._saysNew = true; // the attempt that is heard goes beyond what is shown
    this._takenBack = false; // an end of what is shown: fewer blocks are right
    this._text = "";
    this.committed = false;
  }

  /** Another attempt begins: what is shown stays until it says something else, or more. */
  beginAttempt() {
    this._saysNew = false;
    this._takenBack = false;
  }

  /** The text grew, or an end of it was taken back. */
  changed({ back = false } = {}) {
    this._saysNew = true;
    this._takenBack ||= back;
  }

  /** A block of an attempt, as HTML. */
  block(/** @type {number} */ attempt, /** @type {number} */ number, /** @type {string} */ html) {
    if (this.committed) return;
    const made = h("div", { class: "block" });
    made.append(decorated(fragmentOf(html)));
    if (this._attempt === null) this._attempt = attempt;
    if (attempt !== this._attempt && this._next?.attempt !== attempt) this._next = { attempt, blocks: [] };
    const blocks = attempt === this._attempt ? this._blocks : /** @type {{ blocks: HTMLElement[] }} */ (this._next).blocks;
    const old = blocks[number];
    blocks[number] = made;
    if (blocks === this._blocks) {
      if (old) old.replaceWith(made);
      else this._body.append(made);
    } else if (this._next && this._saysNew && (this._takenBack || blocks.length >= this._blocks.length)) {
      this._attempt = this._next.attempt;
      this._blocks = this._next.blocks;
      this._next = null;
      replace(this._body, this._blocks);
    }
  }

  /** Nothing of what it said stands. */
  clear() {
    this._attempt = null;
    this._next = null;
    this._blocks = [];
    replace(this._body);
  }

  get empty() {
    return !this._body.hasChildNodes() && !this._calls.hasChildNodes() && this._reasoning.hidden;
  }

  reasoning(/** @type {string} */ text) {
    this._reasoning.hidden = !text;
    const shown = this._thought.textContent ?? "";
    if (text.startsWith(shown)) this._thought.append(text.slice(shown.length));
    else this._thought.textContent = text;
  }

  card(/** @type {CallView} */ call) {
    let card = this._cards.get(call.id);
    if (!card) {
      card = new CallCard(this._chat, call);
      this._cards.set(call.id, card);
      this._calls.append(card.element);
    } else card.show(call);
    return card;
  }

  /** It is committed: this is what it came to. Calls that an attempt began to write and that are not in it were never made. */
  commit(/** @type {Message} */ message, /** @type {string | null} */ html = null) {
    const made = new Set(message.parts.map((part) => (part.kind === "tool_call" ? part.call_id : null)));
    this.dropCalls((id) => !made.has(id));
    this._text = textOf(message);
    this.element.dataset.id = message.id;
    if (html !== null) this.whole(html);
    else if (!this._blocks.length && this._text) replace(this._body, h("div", { class: "words" }, this._text));
    this.reasoning(message.parts.map((part) => (part.kind === "reasoning" ? part.text ?? "" : "")).join(""));
    const tokens = (message.input_tokens ?? 0) + (message.output_tokens ?? 0) || (message.estimated_tokens ?? 0);
    const stopped = message.stopped ? causeWords(message.stopped) : "";
    const finish = message.finish === "length" ? "It ran into its length limit." : message.finish === "refused" ? "The model refused to go on." : "";
    this._foot.hidden = !this._text && !stopped && !finish; // one that only calls has its cards
    replace(this._foot,
      h("span", { class: "muted small" }, [message.model ? plain(message.model) : "", tokens ? `${count(tokens)} tokens` : ""].filter(Boolean).join(" · ")),
      stopped || finish ? h("span", { class: "chip warn" }, stopped || finish) : null,
      this._text ? copyButton(() => this._text) : null,
      this._actions.model?.(message.id) ?? []);
  }

  /** Takes away those of its cards that never will be calls. */
  dropCalls(/** @type {(id: string) => boolean} */ which) {
    for (const element of [...this._calls.children]) {
      const id = /** @type {HTMLElement} */ (element).dataset.call ?? "";
      if (!which(id)) continue;
      this._cards.delete(id);
      element.remove();
    }
  }

  /** The HTML of all of it: nothing of it is streamed any more. */
  whole(/** @type {string} */ html) {
    this.committed = true;
    this._blocks = [];
    replace(this._body, decorated(fragmentOf(html)));
  }
}

/** Each block of code gets a button that copies it; wide tables scroll by themselves. */
function decorated(/** @type {DocumentFragment} */ fragment) {
  for (const code of fragment.querySelectorAll("pre")) {
    const box = h("div", { class: "code" });
    code.replaceWith(box);
    code.setAttribute("tabindex", "0");
    box.append(code, copyButton(() => code.textContent ?? ""));
  }
  for (const table of fragment.querySelectorAll("table")) {
    const box = h("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Table" });
    table.replaceWith(box);
    box.append(table);
  }
  return fragment;
}
