/**
 * A client of holdfast for browsers and Node 18 or newer. No dependencies.
 *
 *     const chat = await new Holdfast({ token }).create("support", "Hello");
 *     for await (const update of chat.stream()) console.log(update.turn.text);
 *
 * Whatever changes something is sent under a key of its own and tried again until it is answered, and is done once.
 * Streams come back by themselves where they were. Everything takes an AbortSignal.
 */

import { Chat } from "./chat.js";
import { Connection } from "./connection.js";
import { Schedules } from "./schedules.js";

export { Chat };
export * from "./errors.js";
export { Fold } from "./fold.js";
export { takeBack } from "./shown_words.js";
export { TurnView, newCall } from "./updates.js";

/** @typedef {import("./api.js").components["schemas"]} Schemas */
/** @typedef {import("./updates.js").Update} Update */
/** @typedef {import("./updates.js").CallView} CallView */
/** @typedef {import("./updates.js").ChatEvent} ChatEvent */
/** @typedef {Schemas["AnswerShown"]} Answer */
/** @typedef {Schemas["TurnShown"]} Turn */
/** @typedef {Schemas["OpenCallShown"]} OpenCall */
/** @typedef {Schemas["NewChatGiven"]["message"]} Content */
/** @typedef {import("./chat.js").Asking} Asking */
/** @typedef {import("./chat.js").Sending} Sending */
/** @typedef {import("./chat.js").AnyCall} AnyCall */
/** @typedef {import("./chat_stream.js").ConnectionState} ConnectionState */
/** @typedef {import("./chat_stream.js").JournalLine} JournalLine */
/** @typedef {import("./chat_stream.js").Gate} Gate */
/** @typedef {import("./chat_stream.js").Pass} Pass */
/** @typedef {{ owner?: string, agent?: string, state?: Schemas["State"], archived?: boolean, search?: string, before?: string, limit?: number }} ChatsAsked */
/** @typedef {{ kind?: OpenCall["kind"], owner?: string, before?: string, limit?: number }} CallsAsked */
/** @typedef {{ by?: ("owner" | "agent" | "model" | "kind" | "day")[], owner?: string, since?: string, until?: string }} UsageAsked */

/** A server, and the right to use it: a token, or the cookie that a browser has. */
export class Holdfast {
  /** @param {import("./connection.js").Options} [options] `url` is where the server is mounted: "" is this page's own. */
  constructor(options = {}) {
    this._connection = new Connection(options);
    this.schedules = new Schedules(this._connection);
  }

  /** Whom the token, or the login, stands for, and what that one may do. @returns {Promise<Schemas["PrincipalShown"]>} */
  me(/** @type {Asking} */ asking = {}) {
    return this._connection.ask("GET", "/api/me", asking);
  }

  /** @returns {Promise<Schemas["AgentShown"][]>} */
  async agents(/** @type {Asking} */ asking = {}) {
    return (await this._connection.ask("GET", "/api/agents", asking)).agents;
  }

  /** What people can call with `/name arguments` in chats with an agent. @returns {Promise<Schemas["SlashCommandShown"][]>} */
  async slashCommands(/** @type {string} */ agent, /** @type {Asking} */ asking = {}) {
    return (await this._connection.ask("GET", `/api/agents/${encodeURIComponent(agent)}/slash-commands`, asking)).slash_commands;
  }

  /** The chats that you see, newest first, a page of them. @returns {Promise<Schemas["ChatPage"]>} */
  chats(/** @type {ChatsAsked & Asking} */ { signal, ...query } = {}) {
    return this._connection.ask("GET", "/api/chats", { query, signal });
  }

  /**
   * What people and clients have to answer, in all of them, a page of it. Where `whole` is false, the arguments are an
   * excerpt: `chat.openCall(call)` has all of them. @returns {Promise<Schemas["OpenCallPage"]>}
   */
  openCalls(/** @type {CallsAsked & Asking} */ { signal, ...query } = {}) {
    return this._connection.ask("GET", "/api/calls", { query, signal });
  }

  /** Who spent what. @returns {Promise<Schemas["UsageShown"][]>} */
  async usage(/** @type {UsageAsked & Asking} */ { signal, ...query } = {}) {
    const found = [];
    for (let after; ; ) {
      const page = await this._connection.ask("GET", "/api/usage", { query: { ...query, after }, signal });
      found.push(...page.usage);
      if (page.next == null) return found;
      after = page.next;
    }
  }

  /** What owners may use, as it was set at run time, by owner, a page of it. @returns {Promise<Schemas["BudgetPage"]>} */
  budgets(/** @type {{ after?: string, limit?: number } & Asking} */ { signal, ...query } = {}) {
    return this._connection.ask("GET", "/api/budgets", { query, signal });
  }

  /** How the server is. Open to anyone; operators get the figures, too. @returns {Promise<Schemas["Health"]>} */
  health(/** @type {Asking} */ asking = {}) {
    return this._connection.ask("GET", "/health", { ...asking, also: 503 }); // 503 says that it should get no work
  }

  /** All that the server knows of itself: for operators. @returns {Promise<Schemas["Diagnostics"]>} */
  diagnostics(/** @type {Asking} */ asking = {}) {
    return this._connection.ask("GET", "/api/diagnostics", asking);
  }

  /** Those that hold a lease on the store, in any process: for operators. @returns {Promise<Schemas["WorkerShown"][]>} */
  async workers(/** @type {Asking} */ asking = {}) {
    return (await this._connection.ask("GET", "/api/workers", asking)).workers;
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
