/** The turns that are seen while they happen: updates of the client's stream become messages, cards and words. */

import { newCall } from "../client/holdfast.js";
import { askingCard } from "./asking.js";
import { button, h, replace } from "./dom.js";
import { compactionFold, historyOf } from "./history.js";
import { ResponseView, userMessage } from "./message.js";
import { causeWords, count, duration, money, plain } from "./words.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("../client/holdfast.js").Chat} Chat */
/** @typedef {import("../client/holdfast.js").Update} Update */
/** @typedef {import("../client/holdfast.js").TurnView} TurnView */
/** @typedef {import("./calls.js").CallCard} CallCard */

const STATUS_MS = 250;
const SETTLED_PAGE = 100; // messages whose HTML is read at once, where it did not come
const SETTLED_MAX = 1000; // of them, from the end of the chat
/** @type {Record<string, string>} */
const COMPACTED = { asked: "as somebody asked", near_limit: "near the model's limit", too_long: "it had become too long" };

/**
 * What else a view has to do when something happens.
 * @typedef {object} Needs
 * @property {(id: string) => void} shows a message is shown here
 * @property {(upto: number) => void} folds a compaction is shown here
 * @property {() => void} queue the queue changed
 * @property {(title: string) => void} renamed
 * @property {() => void} told what is known of the chat changed elsewhere
 * @property {() => void} spawned a call has a chat of its own now
 * @property {() => void} cut the history was cut: what is shown does not stand
 * @property {(turn: TurnView) => void} turn it stands so
 */

export class LiveTurns {
  constructor(
    /** @type {Context} */ context, /** @type {Chat} */ chat, /** @type {Map<string, CallCard>} */ cards,
    /** @type {import("./message.js").Actions} */ actions, /** @type {Needs} */ needs,
  ) {
    this._context = context;
    this._chat = chat;
    this._cards = cards;
    this._actions = actions;
    this._needs = needs;
    this.element = h("div", { class: "live" });
    this._status = h("div", { class: "status", hidden: true }); // counts down: it is said once, by the next
    this._said = h("div", { class: "sr", "aria-live": "polite" });
    this.element.append(this._status, this._said);
    /** @type {ResponseView | null} the one that is being said */
    this._response = null;
    /** @type {Map<string, ResponseView>} by the id of the message */
    this._responses = new Map();
    /** @type {Set<number>} attempts whose message is committed */
    this._over = new Set();
    /** @type {Map<string, HTMLElement>} calls of sub-agents that wait for an answer */
    this._below = new Map();
    /** @type {{ until: number, words: string } | null} */
    this._retrying = null;
    this.turns = 0;
    /** @type {number | null} the number of the first turn that is shown here */
    this.first = null;
    this._thoughtBefore = 0; // where the reasoning of the response begins in that of the turn
    const timer = setInterval(() => this._tick(), STATUS_MS);
    context.signal.addEventListener("abort", () => clearInterval(timer));
  }

  _add(/** @type {Node} */ node) {
    this._status.before(node);
  }

  /** The answer that is being said, begun if need be. */
  _open() {
    if (this._response === null) {
      this._response = new ResponseView(this._chat, this._cards, this._actions);
      this._add(this._response.element);
    }
    return this._response;
  }

  take(/** @type {Update} */ update) {
    const turn = update.turn;
    switch (update.kind) {
      case "TextAdded": this._open().changed(); this._retrying = null; break;
      case "ReasoningAdded": this._open().reasoning(this._thoughtOf(turn)); this._retrying = null; break;
      case "Restarted":
        this._open().changed({ back: true });
        if (update.dropped && !turn.answer) this._open().clear();
        if (update.reasoning_dropped) this._open().reasoning(this._thoughtOf(turn));
        break;
      case "Rendered": this._rendered(update); break;
      case "Responded":
        this._respond(update.message);
        this._thoughtBefore = turn.reasoning.length;
        break;
      case "CallDrafted": case "CallBegan": case "CallProgress": case "CallDone": this._card(update.call); break;
      case "CallAsked": case "CallAnswered": this._ask(update.call); break;
      case "Retrying": this._retry(update); break;
      case "Paused": for (const call of update.open) this._ask(call); break;
      case "Finished": this._finish(turn); break;
      case "Happened": this._happen(update.entry, turn); break;
    }
    if (update.kind !== "Rendered") this._needs.turn(turn);
    this._tick();
  }

  /** Of the response that is being said. */
  _thoughtOf(/** @type {TurnView} */ turn) {
    return turn.reasoning.slice(this._thoughtBefore);
  }

  _rendered(/** @type {Extract<Update, { kind: "Rendered" }>} */ { attempt, block, html, message_id: id }) {
    if (id) {
      this._over.add(attempt);
      this._responses.get(id)?.whole(html);
    } else if (!this._over.has(attempt)) this._open().block(attempt, block ?? 0, html);
  }

  /** What was committed while there was no connection may have come without its HTML: that is read then, from the end. */
  async settle() {
    const open = new Map([...this._responses].filter(([, view]) => !view.committed));
    if (!open.size) return;
    const { signal } = this._context;
    const { messages: length } = await this._chat.read({ signal });
    const first = Math.max(0, length - SETTLED_MAX);
    for (let end = length; open.size && end > first; end -= SETTLED_PAGE) {
      const { messages } = await historyOf(this._chat, Math.max(first, end - SETTLED_PAGE), end, signal);
      for (const { id, html } of messages) {
        const view = open.get(id);
        open.delete(id);
        if (view && !view.committed && html !== undefined) view.whole(html);
      }
    }
  }

  _respond(/** @type {any} */ message) {
    const view = this._open();
    view.commit(message);
    this._responses.set(message.id, view);
    this._needs.shows(message.id);
    for (const part of message.parts) {
      if (part.kind === "tool_call" && !this._cards.has(part.call_id)) view.card(newCall(part.call_id, part.name, { arguments: part.arguments ?? "" }));
    }
    this._response = null;
    this._retrying = null;
    this._said.textContent = "The answer has come.";
  }

  _card(/** @type {import("../client/holdfast.js").CallView} */ call) {
    const known = this._cards.get(call.id);
    if (call.child_id && known?.call.child_id !== call.child_id) this._needs.spawned();
    if (known) known.show(call);
    else this._open().card(call);
    const card = /** @type {CallCard} */ (this._cards.get(call.id));
    if (call.kind === null) card.asking.replaceChildren();
    if (call.files.length) card.files(call.files);
  }

  /** A person or a client has to answer, here or in the chat of a sub-agent; or did. */
  _ask(/** @type {import("../client/holdfast.js").CallView} */ call) {
    if (call.chat_id === null) {
      this._card(call);
      const card = /** @type {CallCard} */ (this._cards.get(call.id));
      if (call.kind !== null) this._showAsking(card.asking, call);
      return;
    }
    const key = `${call.chat_id}/${call.id}`;
    const place = this._below.get(key) ?? h("section", { class: "call below", "aria-label": "A sub-agent asks" });
    if (call.kind === null) {
      place.remove();
      this._below.delete(key);
    } else if (!this._below.has(key)) {
      this._below.set(key, place);
      this._add(place);
      this._showAsking(place, call);
    }
  }

  _showAsking(/** @type {HTMLElement} */ place, /** @type {import("../client/holdfast.js").CallView} */ call) {
    if (place.childElementCount) return;
    place.append(askingCard(this._context, this._chat, call, { onanswered: () => this._context.changed() }));
    this._said.textContent = `${plain(call.name)} asks you.`;
  }

  _retry(/** @type {Extract<Update, { kind: "Retrying" }>} */ { reason, at, attempt, model }) {
    this._response?.beginAttempt();
    const words = causeWords(reason) && !reason.includes(" ") ? causeWords(reason) : `${plain(reason)}.`;
    const other = model ? ` Asking ${plain(model)}` : " Asking again";
    this._retrying = { until: at, words: `${words}${other}, attempt ${attempt + 1}` };
    this._said.textContent = this._retrying.words;
  }

  /** What was begun and not committed by the end of its turn never will be. */
  _abandon() {
    this._response?.dropCalls(() => true);
    if (this._response?.empty) this._response.element.remove();
    this._response = null;
  }

  _finish(/** @type {TurnView} */ turn) {
    this._abandon();
    this._retrying = null;
    const spent = [turn.usage.total_tokens ? `${count(turn.usage.total_tokens)} tokens` : "", turn.cost ? money(turn.cost) : ""].filter(Boolean).join(" · ");
    const why = turn.state === "failed" ? this._failure(turn) : turn.state === "stopped" ? h("p", { class: "notice warn" }, causeWords(turn.cause, turn.detail), this._goOn(turn)) : null;
    const several = turn.usage.responses > 1 || turn.cost;
    if (why || several) this._add(h("footer", { class: "turn-end" }, why, several ? h("span", { class: "muted small" }, `This turn: ${spent}`) : null));
    this._said.textContent = turn.state === "done" ? "The turn is done." : `The turn is ${turn.state}.`;
  }

  _goOn(/** @type {TurnView} */ turn) {
    if (turn.cause !== "budget" || !this._context.may("chat")) return null;
    return button("Go on", () => void this._context.try(this._chat.goOn(), "It cannot go on"));
  }

  _failure(/** @type {TurnView} */ turn) {
    const error = turn.error;
    return h("div", { class: "notice bad" }, h("p", null, h("strong", null, "This turn failed. "), error ? plain(error.message) : causeWords(turn.cause, turn.detail)),
      error?.advice ? h("p", null, plain(error.advice)) : null,
      this._context.may("chat") ? button("Try again", () => void this._context.try(this._chat.retry(), "It was not tried again")) : null);
  }

  _happen(/** @type {any} */ entry, /** @type {TurnView} */ turn) {
    switch (entry.kind) {
      case "turn.started":
        this.turns += 1;
        this.first ??= turn.number;
        this._response = null;
        this._thoughtBefore = 0;
        break;
      case "message":
        this._response = null;
        this._needs.shows(entry.message.id);
        if (entry.message.role === "user") this._add(userMessage(this._chat, entry.message, this._actions, entry.at));
        break;
      case "message.queued": case "message.promoted": case "message.dropped": this._needs.queue(); break;
      case "chat.renamed": this._needs.renamed(entry.title); break;
      case "chat.archived": case "chat.agent": this._needs.told(); break;
      case "history.cut": this._needs.cut(); break;
      case "compacted":
        this._needs.folds(entry.upto);
        this._add(compaction(entry));
        break;
      case "compaction.failed": this._add(h("p", { class: "event" }, `No summary could be made: ${plain(entry.error)}`)); break;
      case "chat.repaired": this._add(h("p", { class: "event" }, `The chat was brought back into line (${plain(entry.reason)}).`)); break;
      case "chat.retried": this._add(h("p", { class: "event" }, "Tried again.")); break;
      case "chat.handed_over": this._add(h("p", { class: "event" }, causeWords(entry.cause))); break;
      case "note": if (entry.text) this._add(h("p", { class: "event" }, plain(entry.text))); break;
      case "call.changed": if (this._cards.has(entry.call_id)) this._card({ .../** @type {CallCard} */ (this._cards.get(entry.call_id)).call, state: entry.state }); break;
      default: break; // told elsewhere, or by newer code
    }
    if (turn.state === "stopping") this._retrying = null;
  }

  /** How it stands, in one line below all. */
  _tick() {
    const left = this._retrying ? this._retrying.until - Date.now() : 0;
    const words = this._retrying ? `${this._retrying.words}${left > 0 ? ` in ${duration(left)}` : "…"}` : "";
    this._status.hidden = !words;
    if (this._status.textContent !== words) replace(this._status, words);
  }
}

function compaction(/** @type {any} */ entry) {
  const words = entry.trimmed ? "The older part was left out for the model" : "The older part was summarised for the model";
  return compactionFold(`${words} (${COMPACTED[entry.why ?? "asked"] ?? ""})`, entry);
}
