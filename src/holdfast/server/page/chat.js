/** A chat: its history, the turn that goes on, what waits, and where people write. */

import { ticking } from "./calls.js";
import { nameOf } from "./chats.js";
import { ChildrenView } from "./children.js";
import { composer } from "./composer.js";
import { asked, button, h, replace } from "./dom.js";
import { History } from "./history.js";
import { menu } from "./menu.js";
import { textOf } from "./message.js";
import { QueueView } from "./queue.js";
import { link } from "./router.js";
import { LiveTurns } from "./turn.js";
import { causeWords, count, money, plain, stateWords } from "./words.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("./calls.js").CallCard} CallCard */
/** @typedef {import("../client/holdfast.js").TurnView} TurnView */
/** @typedef {import("../client/holdfast.js").Schemas["ChatShown"]} ChatShown */

const AT_END_PX = 120;
const SILENT_MS = 4000; // after which a chat that works is asked what it does
const TURNS_MAX = 40; // shown live, before all is read anew
const FIND_PAGE = 200;
const SETTLE_MS = 1000; // after which what a connection tells behind its lines has come
const HISTORY_MS = 1500; // after which the history is shown, though the stream still catches up

/** @returns {import("./app.js").View} */
export function show(/** @type {Context} */ context, /** @type {import("./router.js").Place} */ place) {
  const view = new ChatView(context, place.path[1]);
  void view.begin();
  return { title: "Chat", element: view.element };
}

function once(/** @type {() => void} */ run) {
  let done = false;
  return () => {
    if (!done) run();
    done = true;
  };
}

class ChatView {
  constructor(/** @type {Context} */ context, /** @type {string} */ id) {
    this._context = context;
    this._chat = context.client.chat(id);
    this._title = h("h1", { class: "ellipsis" }, "…");
    this._chip = h("span", { class: "chip", role: "status" });
    this._facts = h("span", { class: "muted small facts" });
    this._actions = h("div", { class: "row actions" });
    /** @type {HTMLElement | null} */
    this._filing = null;
    this._why = h("p", { class: "notice why", role: "status", hidden: true });
    this._scroller = h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Messages" });
    this._newer = button("↓ Newest", () => this._toEnd(), "newer", { hidden: true });
    this._queue = new QueueView(context, this._chat, (words) => this._composer?.fill(words));
    this._children = new ChildrenView(context, this._chat);
    this._composer = context.may("chat") ? composer(context, {
      draft: id, agent: () => this._known?.agent ?? null, label: "Your message", placeholder: "Write a message",
      send: async (content, mode) => {
        await this._chat.send(content, { mode });
        void this._queue.look().catch(() => {}); // the stream tells it, too, when it has its turn
        this._toEnd();
        context.changed();
      },
    }) : null;
    this._stop = button("Stop", () => void this._stopTurn(), "danger", { hidden: true });
    this._composer?.extra.append(this._stop);
    this.element = h("div", { class: "chat" },
      h("header", { class: "chat-head" }, h("a", { class: "button quiet menu-button", href: "#/", "aria-label": "All chats" }, "‹"),
        h("div", { class: "grow" }, h("div", { class: "row chat-name" }, this._title, this._chip), this._facts), this._actions),
      this._why, this._children.element, this._scroller, this._newer,
      h("div", { class: "chat-foot" }, this._queue.element, this._composer?.element ?? h("p", { class: "muted small empty" }, "Your token lets you read this chat.")));
    this._following = true; // the end of it
    this._scroller.addEventListener("scroll", () => this._scrolled(), { passive: true });
    new ResizeObserver(() => this._keepEnd()).observe(this._scroller);
    /** @type {ChatShown | null} */
    this._known = null;
    this._shownFacts = "";
    this._heardAt = Date.now();
    this._working = false;
    this._stopping = false;
    this._generation = 0;
  }

  /** Reads all of it anew: at first, and where what is shown does not stand any more. */
  async begin() {
    const generation = ++this._generation;
    this._reading?.abort();
    const reading = this._reading = new AbortController();
    this._context.signal.addEventListener("abort", () => reading.abort(this._context.signal.reason));
    /** @type {ChatShown} */
    let known;
    try {
      known = await this._chat.read({ signal: reading.signal });
    } catch (error) {
      if (!reading.signal.aborted) this._showMissing(error);
      return;
    }
    if (generation !== this._generation) return;
    this._known = known;
    this._showKnown(known);
    /** @type {Map<string, CallCard>} */
    const cards = new Map();
    const local = { ...this._context, signal: reading.signal };
    const actions = this._messageActions();
    const history = new History(local, this._chat, actions, this._scroller);
    const showHistory = once(() => {
      history.begin(known.messages);
      if (!known.messages && !known.turn) history.element.append(h("p", { class: "empty" }, "Nothing was said yet."));
      this._toEnd();
    });
    const begin = () => {
      if (reading.signal.aborted) return;
      // Turns came and went in between, or the one that ran was over before the stream began: no one shows them.
      const next = known.state === "idle" || known.state === "failed" ? known.turn + 1 : known.turn;
      if (live.first !== null && live.first > next) return void this.begin();
      showHistory();
    };
    const live = this._live = new LiveTurns(local, this._chat, cards, actions, {
      shows: (id) => {
        history.leave(id);
        this._queue.took(id);
      },
      folds: (upto) => history.leaveCompaction(upto),
      queue: () => void this._queue.look().catch(() => {}),
      renamed: (title) => this._showTitle(title),
      told: () => void this._lookAgain(),
      cut: () => void this.begin(),
      spawned: () => void this._children.look(),
      turn: (turn) => this._showTurn(turn),
    });
    replace(this._scroller, history.element, live.element);
    new ResizeObserver(() => this._keepEnd()).observe(live.element);
    ticking(cards, reading.signal);
    this._following = true;
    setTimeout(begin, HISTORY_MS);
    this._watchSilence(reading.signal);
    void this._children.look();
    await this._follow(live, reading.signal, begin);
  }

  /** `begin`: what the stream tells first is known, and is not shown a second time by the history. */
  async _follow(/** @type {LiveTurns} */ live, /** @type {AbortSignal} */ signal, /** @type {() => void} */ begin) {
    const onconnection = (/** @type {import("./app.js").ConnectionState} */ state) => {
      this._context.connection(state);
      if (state !== "live") return;
      this._heardAt = Date.now();
      begin();
      setTimeout(() => void live.settle().catch(() => {}), SETTLE_MS);
    };
    try {
      const { gate } = this._context;
      const updates = this._chat.stream({ follow: true, render: "html", signal, gate, onconnection, patience_ms: Infinity });
      for await (const update of updates) {
        if (signal.aborted) return;
        this._heardAt = Date.now();
        this._why.hidden = true;
        live.take(update);
        this._keepEnd();
        if (live.turns > TURNS_MAX && this._following && update.turn.over) return void this.begin();
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Error && "code" in error && error.code === "wrong_cursor") return void this.begin(); // another chat has its id now
      this._showMissing(error);
    }
  }

  _showMissing(/** @type {unknown} */ error) {
    const status = error instanceof Error && "status" in error ? error.status : 0;
    const gone = error instanceof Error && "code" in error && error.code === "not_found";
    if (gone && this._composer) this._composer.element.hidden = true;
    const [title, words] = gone ? ["This chat is not there", "It was deleted, or it is not yours."]
      : status === 401 ? ["You are logged out", "Log in again; what was running goes on."] : ["The chat could not be read", plain(String(error))];
    replace(this._scroller, h("div", { class: "empty" }, h("h2", null, title), h("p", null, words),
      status === 401 ? h("a", { class: "button", href: "login" }, "Log in") : gone ? h("a", { class: "button", href: "#/" }, "All chats")
        : button("Try again", () => void this.begin())));
  }

  /** Somebody else has archived it, or gave it another agent. */
  async _lookAgain() {
    const known = await this._chat.read({ signal: this._context.signal }).catch(() => null);
    if (!known) return;
    this._known = known;
    this._showKnown(known);
  }

  // --- the head -----------------------------------------------------------------------------------

  _showTitle(/** @type {string} */ title) {
    const name = plain(title);
    this._title.textContent = name;
    this._title.title = name;
    this._context.title(name);
  }

  _showKnown(/** @type {ChatShown} */ chat) {
    this._showTitle(nameOf({ ...chat, opening: this._title.textContent === "…" ? null : this._title.textContent }));
    if (!chat.title) void this._showOpening().catch(() => {}); // then it has its id for a name
    this._showState(chat.state);
    this._queue.show(chat.queue);
    this._showFacts(chat.turn_tokens, chat.turn_cost);
    if (!this._actions.hasChildNodes()) this._fillActions(chat);
    if (this._filing) this._filing.textContent = chat.archived ? "Bring back" : "Archive";
  }

  /** Once: who is in the menu by keyboard stays there when the chat is looked at again. */
  _fillActions(/** @type {ChatShown} */ chat) {
    replace(this._actions,
      button("Why?", () => void this._askWhy(), "quiet", { title: "What it does or waits for" }),
      h("a", { class: "button quiet", href: link("chats", chat.id, "timeline") }, "Timeline"),
      chat.parent_id ? h("a", { class: "button quiet", href: link("chats", chat.parent_id) }, "Parent") : null,
      this._context.may("chat") ? this._menu(chat) : null);
  }

  /** Without a title, a chat is called by the words that it began with. */
  async _showOpening() {
    const { messages } = await this._chat.messages({ start: 0, limit: 1, signal: this._context.signal });
    const words = messages.length ? textOf(/** @type {any} */ (messages[0])).trim().slice(0, 80) : "";
    if (words && !this._known?.title) this._showTitle(words);
  }

  _menu(/** @type {ChatShown} */ chat) {
    return menu((item) => [
      item("Why is it where it is?", () => void this._askWhy(), "phone-only"),
      h("a", { class: "button quiet phone-only", href: link("chats", chat.id, "timeline") }, "Timeline"),
      item("Rename", () => this._rename()),
      item("Fork", () => void this._fork(null)),
      item("Summarise the older part", () => void this._context.try(this._chat.compact(), "It was not summarised")),
      this._filing = item("", () => void this._archive(!this._known?.archived)),
      item("Delete", () => void this._delete(), "danger"),
    ]);
  }

  _showFacts(/** @type {number} */ tokens, /** @type {number} */ cost) {
    const known = this._known;
    if (!known) return;
    const spent = [tokens ? `${count(tokens)} tokens` : "", cost ? money(cost) : ""].filter(Boolean).join(", ");
    const words = [known.agent, known.owner, spent, known.archived].join("\n");
    if (words === this._shownFacts) return;
    this._shownFacts = words;
    replace(this._facts, h("span", null, plain(known.agent)), known.owner && this._context.me.operates ? ` · ${plain(known.owner)}` : "",
      spent ? ` · this turn: ${spent}` : "", known.archived ? " · archived" : "");
  }

  _showState(/** @type {string} */ state) {
    const [words, kind] = stateWords(state);
    if (this._chip.dataset.state !== state) { // it is said aloud: once
      this._chip.dataset.state = state;
      this._chip.className = `chip ${kind}`;
      replace(this._chip, h("span", { class: `dot ${state === "running" ? "pulse" : ""}` }), words);
    }
    this._working = state === "running" || state === "stopping";
    this._stopping = state === "stopping";
    this._stop.hidden = !this._working && state !== "waiting";
    this._stop.disabled = this._stopping;
    this._stop.textContent = this._stopping ? "Stopping…" : "Stop";
    this._composer?.busy(this._working || state === "waiting");
  }

  _showTurn(/** @type {TurnView} */ turn) {
    this._showState(turn.state === "done" || turn.state === "stopped" ? "idle" : turn.state);
    this._showFacts(turn.usage.total_tokens, turn.cost ?? 0);
    if (turn.over) this._context.changed();
  }

  // --- what people do -----------------------------------------------------------------------------

  /** @returns {import("./message.js").Actions} */
  _messageActions() {
    if (!this._context.may("chat")) return {};
    return {
      user: (message) => [
        button("Edit", () => void this._edit(message), "quiet"),
        button("Fork", () => void this._forkAt(message.id), "quiet", { title: "A copy of the chat up to here" }),
      ],
      model: (id) => [button("Fork", () => void this._forkAt(id), "quiet", { title: "A copy of the chat up to here" })],
    };
  }

  async _stopTurn() {
    this._stop.disabled = true;
    this._stop.textContent = "Stopping…";
    if (!await this._context.try(this._chat.stop(), "It was not stopped")) this._showState("running");
  }

  async _edit(/** @type {any} */ message) {
    const text = h("textarea", { class: "field", rows: 5, "aria-label": "The message" });
    text.value = textOf(message);
    const words = "The chat goes on from here: this message and all behind it are replaced.";
    if (!await asked({ title: "Edit the message", words, yes: "Replace", fields: [text] }) || !text.value.trim()) return;
    await this._context.try(this._chat.edit(message.id, text.value), "It was not changed");
  }

  async _forkAt(/** @type {string} */ id) {
    await this._context.try(async () => {
      const at = await this._positionOf(id);
      if (at !== null) await this._fork(at);
    }, "It was not forked");
  }

  async _fork(/** @type {number | null} */ upto) {
    await this._context.try(async () => {
      const fork = await this._chat.fork(upto === null ? {} : { upto });
      this._context.say("This is a copy. The chat that it was made of stays as it is.");
      this._context.changed();
      this._context.go(link("chats", fork.id));
    }, "It was not forked");
  }

  /** Where in the history a message is, looked for from its end. @returns {Promise<number | null>} */
  async _positionOf(/** @type {string} */ id) {
    const { messages: length } = await this._chat.read();
    for (let end = length; end > 0; end -= FIND_PAGE) {
      const start = Math.max(0, end - FIND_PAGE);
      const { messages } = await this._chat.messages({ start, limit: end - start });
      const found = messages.find((message) => message.id === id);
      if (found) return found.pos;
    }
    this._context.say("That message is not in the history any more.", { bad: true });
    return null;
  }

  async _rename() {
    const field = h("input", { class: "field", maxlength: 200, "aria-label": "Title", value: this._known?.title ?? "" });
    if (!await asked({ title: "Rename the chat", yes: "Rename", fields: [field] }) || !field.value.trim()) return;
    await this._context.try(async () => {
      this._known = await this._chat.rename(field.value.trim());
      this._showKnown(this._known);
      this._context.changed();
    }, "It was not renamed");
  }

  async _archive(/** @type {boolean} */ archived) {
    await this._context.try(async () => {
      this._known = await this._chat.archive(archived);
      this._showKnown(this._known);
      this._context.say(archived ? "Archived. The filter “Archived” finds it." : "It is back.");
      this._context.changed();
    }, archived ? "It was not archived" : "It was not brought back");
  }

  async _delete() {
    const words = "It is really gone then, with all its messages and files. A chat that works is stopped first by hand.";
    if (!await asked({ title: "Delete this chat?", words, yes: "Delete", danger: true })) return;
    await this._context.try(async () => {
      await this._chat.delete();
      this._context.changed();
      this._context.go("#/");
    }, "It was not deleted");
  }

  // --- why, and where one looks -------------------------------------------------------------------

  async _askWhy() {
    await this._context.try(async () => {
      this._showWhy(await this._chat.why({ signal: this._context.signal }));
    }, "It does not say");
  }

  _showWhy(/** @type {import("../client/holdfast.js").Schemas["StandingShown"]} */ standing) {
    this._why.hidden = false;
    replace(this._why, plain(standing.words), standing.next ? ` ${plain(standing.next)}` : "", standing.error ? ` ${causeWords(standing.error.cause, standing.error.message)}` : "");
    if (standing.deadline_at) for (const card of this._runningCards()) card.deadline(standing.deadline_at);
  }

  *_runningCards() {
    for (const card of this._live?._cards.values() ?? []) if (card.call.state === "started") yield card;
  }

  /** A chat that works and says nothing is asked what it does: nobody has to wonder. */
  _watchSilence(/** @type {AbortSignal} */ signal) {
    const timer = setInterval(() => {
      if (!this._working || document.hidden || Date.now() - this._heardAt < SILENT_MS) return;
      this._heardAt = Date.now();
      void this._chat.why({ signal }).then((standing) => this._showWhy(standing), () => {}); // nobody asked: what fails is not told
    }, 1000);
    signal.addEventListener("abort", () => clearInterval(timer));
  }

  _scrolled() {
    const left = this._scroller.scrollHeight - this._scroller.scrollTop - this._scroller.clientHeight;
    this._following = left < AT_END_PX;
    this._newer.hidden = this._following;
  }

  _keepEnd() {
    if (this._following) this._scroller.scrollTop = this._scroller.scrollHeight;
  }

  _toEnd() {
    this._following = true;
    this._scroller.scrollTop = this._scroller.scrollHeight;
  }
}
