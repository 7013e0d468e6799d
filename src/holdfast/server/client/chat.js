/**
 * A handle on a chat: what is sent to it, what is read of it, what it tells as it happens (`chat_stream.js`).
 */

import { journalOf, updatesOf } from "./chat_stream.js";
import { TurnTimeout } from "./errors.js";

/** @typedef {import("./connection.js").Connection} Connection */
/** @typedef {import("./api.js").components["schemas"]} Schemas */
/** @typedef {import("./updates.js").Update} Update */
/** @typedef {Schemas["AnswerShown"]} Answer */
/** @typedef {Schemas["TurnShown"]} Turn */
/** @typedef {Schemas["OpenCallShown"]} OpenCall */
/** @typedef {Schemas["MessageGiven"]["message"]} MessageContent */
/** @typedef {{ signal?: AbortSignal }} Asking */
/** @typedef {{ key?: string, signal?: AbortSignal }} Sending */
/** @typedef {{ id: string, chat_id?: string | null } | { call_id: string, chat_id?: string | null, digest?: string } | string} AnyCall */

const TURN_WAIT_S = 25;
const KEPT = "holdfast:files/"; // before the digest of a file that is kept beside the messages
const FILE_MS = 120_000; // for one that is elsewhere

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
  read(/** @type {Asking} */ { signal } = {}) {
    return this._connection.ask("GET", pathOf(this.id), { signal });
  }

  /**
   * Its history from a position on, a page of it. With `render: "html"`, what a model said comes as sanitised HTML, too.
   * @returns {Promise<Schemas["MessagePage"]>}
   */
  messages(/** @type {{ start?: number, limit?: number, render?: "html", signal?: AbortSignal }} */ { signal, ...query } = {}) {
    return this._connection.ask("GET", `${pathOf(this.id)}/messages`, { query, signal });
  }

  /**
   * The bytes of a file that a message of this chat names, or of one that holds them itself.
   * @returns {Promise<Blob>}
   */
  async file(/** @type {{ uri: string }} */ file, /** @type {Asking} */ { signal } = {}) {
    if (file.uri.startsWith("data:")) return blobOf(file.uri);
    if (!file.uri.startsWith(KEPT)) return (await fetch(file.uri, { signal: signal ?? AbortSignal.timeout(FILE_MS) })).blob();
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

  /** Replace one of the user's messages and everything after it. */
  edit(/** @type {string} */ messageId, /** @type {MessageContent} */ message, /** @type {Sending} */ sending = {}) {
    return this._post(`messages/${encodeURIComponent(messageId)}/edit`, { message }, sending);
  }

  /**
   * A copy of its history under a new id, at rest: all of it, or up to the group that the position `upto` is in.
   * @returns {Promise<Chat>}
   */
  async fork(/** @type {Schemas["ForkGiven"] & Sending} */ { key, signal, ...given } = {}) {
    const made = await this._connection.ask("POST", `${pathOf(this.id)}/fork`, { body: given, key, signal });
    return new Chat(this._connection, made.id);
  }

  /** Try a failed turn again. */
  retry(/** @type {Sending} */ sending = {}) {
    return this._post("retry", undefined, sending);
  }

  /** Go on with a turn that a budget ended, without a new message. */
  goOn(/** @type {Sending} */ sending = {}) {
    return this._post("go-on", undefined, sending);
  }

  /** Have the older part of the history summarised for the model; nothing of it is deleted. */
  compact(/** @type {Sending} */ sending = {}) {
    return this._post("compact", undefined, sending);
  }

  /** What waits for its turn, in order, a page of it. @returns {Promise<Schemas["QueuePage"]>} */
  queue(/** @type {{ after?: string } & Asking} */ { signal, ...query } = {}) {
    return this._connection.ask("GET", `${pathOf(this.id)}/queue`, { query, signal });
  }

  /** Take a queued message next: what is running now is superseded. */
  promote(/** @type {string} */ messageId, /** @type {Sending} */ sending = {}) {
    return this._post(`queue/${encodeURIComponent(messageId)}/promote`, undefined, sending);
  }

  /** Take a queued message back: `dropped` holds it. @returns {Promise<Answer>} */
  withdraw(/** @type {string} */ messageId, /** @type {Sending} */ sending = {}) {
    return this._connection.ask("DELETE", `${pathOf(this.id)}/queue/${encodeURIComponent(messageId)}`, sending);
  }

  /** @returns {Promise<Schemas["ChatShown"]>} */
  rename(/** @type {string} */ title, /** @type {Asking} */ { signal } = {}) {
    return this._connection.ask("PATCH", pathOf(this.id), { body: { title }, signal });
  }

  /** Put it into the archive, or with `false` back. @returns {Promise<Schemas["ChatShown"]>} */
  archive(archived = true, /** @type {Asking} */ { signal } = {}) {
    return this._connection.ask("PATCH", pathOf(this.id), { body: { archived }, signal });
  }

  /** Really gone, with `children` the chats of its sub-agents, too: the ids. Refused unless it is at rest. @returns {Promise<string[]>} */
  async delete(/** @type {{ children?: boolean } & Asking} */ { signal, ...query } = {}) {
    return (await this._connection.ask("DELETE", pathOf(this.id), { query, signal })).deleted;
  }

  /** Why it stands where it stands: what it does or waits for, since when, until when, and what comes next. @returns {Promise<Schemas["StandingShown"]>} */
  why(/** @type {Asking} */ { signal } = {}) {
    return this._connection.ask("GET", `${pathOf(this.id)}/why`, { signal });
  }

  /** What people and clients have to answer. @returns {Promise<OpenCall[]>} */
  async openCalls(/** @type {Asking} */ { signal } = {}) {
    return (await this._connection.ask("GET", `${pathOf(this.id)}/calls`, { signal })).calls;
  }

  /** One of them, with all of its arguments, however long. @returns {Promise<OpenCall>} */
  openCall(/** @type {AnyCall} */ call, /** @type {Asking} */ { signal } = {}) {
    const { id, chatId } = this._whose(call);
    return this._connection.ask("GET", `${pathOf(chatId)}/calls/${encodeURIComponent(id)}`, { signal });
  }

  /** The chats of its sub-agents, with `deep` all that are below it: those at work first. @returns {Promise<Schemas["SubAgentShown"][]>} */
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
    const { id, chatId } = this._whose(call);
    return this._post(`calls/${encodeURIComponent(id)}/${verb}`, body, sending, chatId);
  }

  _whose(/** @type {AnyCall} */ call) {
    const id = typeof call === "string" ? call : "call_id" in call ? call.call_id : call.id;
    return { id, chatId: (typeof call === "object" && call.chat_id) || this.id };
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
   * comes once it is committed, and nothing is taken back. Where the connection breaks it comes back by itself, and says
   * so to `onconnection`. With `render: "html"` there are `Rendered` updates, too: what the model says as sanitised HTML.
   * @param {import("./chat_stream.js").Following & { settled?: boolean, render?: "html" }} [options]
   * @returns {AsyncGenerator<Update, void, void>}
   */
  stream(options = {}) {
    return updatesOf(this._connection, pathOf(this.id), options);
  }

  /**
   * The entries of its journal as they are, from its beginning or behind a `cursor` of one: what the updates are made of.
   * Ends when the chat rests; with `follow` it goes on. With `deltas`, the pieces of a response that is open come, too. With
   * `whole_turn` it begins with the turn that the cursor is in, or the last one.
   * @param {import("./chat_stream.js").Following & { deltas?: boolean, whole_turn?: boolean }} [options]
   * @returns {AsyncGenerator<import("./chat_stream.js").JournalLine, void, void>}
   */
  journal(options = {}) {
    return journalOf(this._connection, pathOf(this.id), options);
  }
}

function pathOf(/** @type {string} */ chatId) {
  return `/api/chats/${encodeURIComponent(chatId)}`;
}

/** What a data: URI holds. Nothing is fetched, which the policy of a page may forbid. */
function blobOf(/** @type {string} */ uri) {
  const comma = uri.indexOf(",");
  const head = uri.slice("data:".length, comma);
  const body = decodeURIComponent(uri.slice(comma + 1));
  const bytes = /;base64$/i.test(head) ? Uint8Array.from(atob(body), (char) => char.charCodeAt(0)) : new TextEncoder().encode(body);
  return new Blob([bytes], { type: head.replace(/;base64$/i, "") || "text/plain;charset=US-ASCII" });
}
