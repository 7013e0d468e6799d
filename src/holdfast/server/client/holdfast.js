/**
 * A client of holdfast for browsers and Node 18 or newer. No dependencies.
 *
 *     const chat = await new Holdfast({ token }).create("support", "Hello");
 *     for await (const update of chat.stream()) console.log(update.turn.text);
 *
 * Whatever changes something is sent under a key of its own and tried again until it is answered, and is done once.
 * Streams come back by themselves where they were. Everything takes an AbortSignal.
 */

import { Backoff, Connection } from "./connection.js";
import { NotFound, TurnTimeout, errorOf } from "./errors.js";
import { Fold } from "./fold.js";
import { parseCursor } from "./update_cursor.js";

export * from "./errors.js";
export { Fold } from "./fold.js";
export { takeBack } from "./shown_words.js";
export { TurnView } from "./updates.js";

/** @typedef {import("./api.js").components["schemas"]} Schemas */
/** @typedef {import("./updates.js").Update} Update */
/** @typedef {import("./updates.js").CallView} CallView */
/** @typedef {import("./updates.js").ChatEvent} ChatEvent */
/** @typedef {Schemas["AnswerShown"]} Answer */
/** @typedef {Schemas["TurnShown"]} Turn */
/** @typedef {Schemas["OpenCallShown"]} OpenCall */
/** @typedef {Schemas["NewChatGiven"]["message"]} Content */
/** @typedef {{ key?: string, signal?: AbortSignal }} Sending */
/** @typedef {{ id: string, chat_id?: string | null } | { call_id: string, chat_id?: string | null, digest?: string } | string} AnyCall */

const TURN_WAIT_S = 25;

/** A server, and the right to use it: a token, or the cookie that a browser has. */
export class Holdfast {
  /** @param {import("./connection.js").Options} [options] `url` is where the server is mounted: "" is this page's own. */
  constructor(options = {}) {
    this._connection = new Connection(options);
  }

  /**
   * A new chat; with a message it starts to run.
   * @param {string} agent
   * @param {Content} [message]
   * @param {Omit<Schemas["NewChatGiven"], "agent" | "message"> & Sending} [options]
   */
  async create(agent, message, { key, signal, ...more } = {}) {
    const body = { agent, ...(message == null ? {} : { message }), ...more };
    /** @type {Schemas["ChatShown"]} */
    const made = await this._connection.ask("POST", "/api/chats", { body, key, signal });
    return this.chat(made.id);
  }

  /** One that there is. */
  chat(/** @type {string} */ id) {
    return new Chat(this._connection, id);
  }
}

const KEPT = "holdfast:files/"; // before the digest of a file that is kept beside the messages

/** A handle on a chat. */
export class Chat {
  constructor(/** @type {Connection} */ connection, /** @type {string} */ id) {
    this._connection = connection;
    this.id = id;
  }

  /** @returns {Promise<Answer>} */
  _post(/** @type {string} */ path, /** @type {object | undefined} */ body, /** @type {Sending} */ { key, signal }, chatId = this.id) {
    return this._connection.ask("POST", `${pathOf(chatId)}/${path}`, { body, key, signal });
  }

  /** How it stands. @returns {Promise<Schemas["ChatShown"]>} */
  read(/** @type {{ signal?: AbortSignal }} */ { signal } = {}) {
    return this._connection.ask("GET", pathOf(this.id), { signal });
  }

  /** Its history from a position on, a page of it. @returns {Promise<Schemas["MessagePage"]>} */
  messages(/** @type {{ start?: number, limit?: number, signal?: AbortSignal }} */ { signal, ...query } = {}) {
    return this._connection.ask("GET", `${pathOf(this.id)}/messages`, { query, signal });
  }

  /**
   * The bytes of a file that a message of this chat names, or of one that holds them itself.
   * @returns {Promise<Blob>}
   */
  async file(/** @type {{ uri: string }} */ file, /** @type {{ signal?: AbortSignal }} */ { signal } = {}) {
    if (!file.uri.startsWith(KEPT)) return (await fetch(file.uri, { signal: signal ?? null })).blob();
    const digest = encodeURIComponent(file.uri.slice(KEPT.length));
    return this._connection.ask("GET", `${pathOf(this.id)}/files/${digest}`, { signal, bytes: true });
  }

  /** `mode`: `queue` (after what is going on), `steer` (into the running turn), `interrupt` (now). */
  send(
    /** @type {Schemas["MessageGiven"]["message"]} */ message,
    /** @type {Omit<Schemas["MessageGiven"], "message"> & Sending} */ { key, signal, ...more } = {},
  ) {
    return this._post("messages", { message, ...more }, { key, signal });
  }

  /** End the turn: what was said so far is kept. */
  stop(/** @type {{ clear_queue?: boolean } & Sending} */ { clear_queue = false, ...sending } = {}) {
    return this._post("stop", { clear_queue }, sending);
  }

  /** What people and clients have to answer. @returns {Promise<OpenCall[]>} */
  async openCalls(/** @type {{ signal?: AbortSignal }} */ { signal } = {}) {
    return (await this._connection.ask("GET", `${pathOf(this.id)}/calls`, { signal })).calls;
  }

  /** The chats of its sub-agents, with `deep` all that are below it: those at work first. */
  async children(/** @type {{ deep?: boolean, signal?: AbortSignal }} */ { deep = false, signal } = {}) {
    return (await this._connection.ask("GET", `${pathOf(this.id)}/children?deep=${deep}`, { signal })).children;
  }

  /**
   * Of one of `openCalls`, for the arguments that it shows: refused if others would run by then. `always` keeps the
   * rules of its `offer`, too.
   * @param {AnyCall} call
   * @param {Omit<Schemas["ApproveGiven"], "digest"> & Sending} [options]
   */
  approve(call, { key, signal, ...more } = {}) {
    const body = typeof call === "object" && "digest" in call ? { digest: call.digest, ...more } : more;
    return this._answer(call, "approve", Object.keys(body).length ? body : undefined, { key, signal });
  }

  /** `words` reach the model. */
  deny(/** @type {AnyCall} */ call, words = "", /** @type {Sending} */ sending = {}) {
    return this._answer(call, "deny", { words }, sending);
  }

  /** The answer to a question, or the result of a tool that this client runs. */
  answer(/** @type {AnyCall} */ call, /** @type {string} */ content, /** @type {{ error?: boolean } & Sending} */ { error = false, ...sending } = {}) {
    return this._answer(call, "result", { content, error }, sending);
  }

  /** In the chat that the call is of, be it a sub-agent's. */
  _answer(/** @type {AnyCall} */ call, /** @type {string} */ verb, /** @type {object | undefined} */ body, /** @type {Sending} */ sending) {
    const id = typeof call === "string" ? call : "call_id" in call ? call.call_id : call.id;
    const chatId = (typeof call === "object" && call.chat_id) || this.id;
    return this._post(`calls/${encodeURIComponent(id)}/${verb}`, body, sending, chatId);
  }

  /**
   * The turn that the chat is in, or was in last, once it is over or waits for people: `state` says which. Raises
   * TurnTimeout, which has the turn; it goes on.
   * @returns {Promise<Turn>}
   */
  async turn(/** @type {{ number?: number, timeout_ms?: number, signal?: AbortSignal }} */ { number, timeout_ms = 3_600_000, signal } = {}) {
    const until = Date.now() + timeout_ms;
    for (;;) {
      const wait_s = Math.max(0, Math.min(TURN_WAIT_S, (until - Date.now()) / 1000));
      /** @type {Turn} */
      const turn = await this._connection.ask("GET", `${pathOf(this.id)}/turn`, { query: { number, wait_s }, signal });
      if (turn.state !== "running" && turn.state !== "queued") return turn;
      if (Date.now() >= until) throw new TurnTimeout(`the turn is ${turn.state} after ${timeout_ms} ms; it goes on`, turn);
    }
  }

  /**
   * What there is to show, reconciled: text as it grows, calls, retries, the end of the turn. Begins with the turn that
   * goes on, or the last one; with the `cursor` of an update, behind that, wherever it was read; with "", at the beginning
   * of the chat. Ends when the chat rests or waits for a person or a client; with `follow` it goes on. With `settled`, text
   * comes once it is committed, and nothing is taken back. Where the connection breaks it comes back by itself.
   * @param {{ after?: string | null, settled?: boolean, follow?: boolean, signal?: AbortSignal }} [options]
   * @returns {AsyncGenerator<Update, void, void>}
   */
  async *stream({ after = null, settled = false, follow = false, signal } = {}) {
    const reader = new UpdateReader(after, settled);
    const backoff = new Backoff(this._connection.patienceMs);
    for (;;) {
      signal?.throwIfAborted();
      for await (const seen of this._connection.events(`${pathOf(this.id)}/events`, { ...reader.query, follow }, signal)) {
        backoff.reset();
        if (seen.event === "gone") throw new NotFound("the chat was deleted", { code: "not_found" });
        if (seen.event === "problem") throw errorOf(seen.data.status, seen.data);
        if (seen.event === "end") return;
        if (seen.event === "reconnect") break;
        yield* reader.take(seen.event, seen.data, seen.id);
        if (reader.paused && !follow) return;
      }
      reader.reconnect();
      await backoff.wait(undefined, signal);
    }
  }
}

function pathOf(/** @type {string} */ chatId) {
  return `/api/chats/${encodeURIComponent(chatId)}`;
}

/** One reader's way through a chat, over any number of connections. */
class UpdateReader {
  constructor(/** @type {string | null} */ after, /** @type {boolean} */ settled) {
    this._after = after;
    this._settled = settled;
    this._live = false;
    /** @type {string | null} */
    this._place = null; // of the last event that was folded since it began
    this._parsed = after === null ? null : parseCursor(after);
    this._fold = new Fold({ settled });
    this._again = after !== null; // what comes was told before
  }

  /** What to ask the server for. */
  get query() {
    return this._place === null
      ? { after: this._after, whole_turn: true, live: true }
      : { after: this._place, live: true };
  }

  /** Where nothing was told yet it begins anew: what is streamed is to be taken from its beginning. */
  reconnect() {
    this._live = false;
    if (this._place !== null) return;
    this._fold = new Fold({ settled: this._settled });
    this._again = this._after !== null;
  }

  /** Nothing happens until a person or a client acts, and nothing was left unread. */
  get paused() {
    return this._live && this._fold.paused;
  }

  /** @returns {Update[]} */
  take(/** @type {string} */ event, /** @type {ChatEvent} */ data, /** @type {string} */ id) {
    if (event === "live") this._live = true;
    if (event === "place" && this._parsed) {
      this._fold.resume(this._parsed.mark, this._parsed.place);
      this._again = false;
    }
    if (!id) return [];
    const updates = this._fold.take(data, id);
    if (this._again) return [];
    this._place = id;
    return updates;
  }
}
