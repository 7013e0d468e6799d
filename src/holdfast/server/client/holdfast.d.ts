export { Chat };
export * from "./errors.js";
export { Fold } from "./fold.js";
export { takeBack } from "./shown_words.js";
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
    constructor(options?: import("./connection.js").Options);
    _connection: Connection;
    schedules: Schedules;
    /** Whom the token, or the login, stands for, and what that one may do. @returns {Promise<Schemas["PrincipalShown"]>} */
    me(asking?: Asking): Promise<Schemas["PrincipalShown"]>;
    /** @returns {Promise<Schemas["AgentShown"][]>} */
    agents(asking?: Asking): Promise<Schemas["AgentShown"][]>;
    /** What people can call with `/name arguments` in chats with an agent. @returns {Promise<Schemas["SlashCommandShown"][]>} */
    slashCommands(agent: string, asking?: Asking): Promise<Schemas["SlashCommandShown"][]>;
    /** The chats that you see, newest first, a page of them. @returns {Promise<Schemas["ChatPage"]>} */
    chats({ signal, ...query }?: ChatsAsked & Asking): Promise<Schemas["ChatPage"]>;
    /**
     * What people and clients have to answer, in all of them, a page of it. Where `whole` is false, the arguments are an
     * excerpt: `chat.openCall(call)` has all of them. @returns {Promise<Schemas["OpenCallPage"]>}
     */
    openCalls({ signal, ...query }?: CallsAsked & Asking): Promise<Schemas["OpenCallPage"]>;
    /** Who spent what. @returns {Promise<Schemas["UsageShown"][]>} */
    usage({ signal, ...query }?: UsageAsked & Asking): Promise<Schemas["UsageShown"][]>;
    /** What owners may use, as it was set at run time, by owner, a page of it. @returns {Promise<Schemas["BudgetPage"]>} */
    budgets({ signal, ...query }?: {
        after?: string;
        limit?: number;
    } & Asking): Promise<Schemas["BudgetPage"]>;
    /** How the server is. Open to anyone; operators get the figures, too. @returns {Promise<Schemas["Health"]>} */
    health(asking?: Asking): Promise<Schemas["Health"]>;
    /** All that the server knows of itself: for operators. @returns {Promise<Schemas["Diagnostics"]>} */
    diagnostics(asking?: Asking): Promise<Schemas["Diagnostics"]>;
    /** Those that hold a lease on the store, in any process: for operators. @returns {Promise<Schemas["WorkerShown"][]>} */
    workers(asking?: Asking): Promise<Schemas["WorkerShown"][]>;
    /**
     * A new chat; with a message it starts to run.
     * @param {string} agent
     * @param {Content} [message]
     * @param {Omit<Schemas["NewChatGiven"], "agent" | "message"> & Sending} [options]
     */
    create(agent: string, message?: Content, { key, signal, ...more }?: Omit<Schemas["NewChatGiven"], "agent" | "message"> & Sending): Promise<Chat>;
    /** One that there is. */
    chat(id: string): Chat;
}
export type Schemas = import("./api.js").components["schemas"];
export type Update = import("./updates.js").Update;
export type CallView = import("./updates.js").CallView;
export type ChatEvent = import("./updates.js").ChatEvent;
export type Answer = Schemas["AnswerShown"];
export type Turn = Schemas["TurnShown"];
export type OpenCall = Schemas["OpenCallShown"];
export type Content = Schemas["NewChatGiven"]["message"];
export type Asking = import("./chat.js").Asking;
export type Sending = import("./chat.js").Sending;
export type AnyCall = import("./chat.js").AnyCall;
export type ConnectionState = import("./chat_stream.js").ConnectionState;
export type JournalLine = import("./chat_stream.js").JournalLine;
export type Gate = import("./chat_stream.js").Gate;
export type Pass = import("./chat_stream.js").Pass;
export type ChatsAsked = {
    owner?: string;
    agent?: string;
    state?: Schemas["State"];
    archived?: boolean;
    search?: string;
    before?: string;
    limit?: number;
};
export type CallsAsked = {
    kind?: OpenCall["kind"];
    owner?: string;
    before?: string;
    limit?: number;
};
export type UsageAsked = {
    by?: ("owner" | "agent" | "model" | "kind" | "day")[];
    owner?: string;
    since?: string;
    until?: string;
};
import { Chat } from "./chat.js";
import { Connection } from "./connection.js";
import { Schedules } from "./schedules.js";
export { TurnView, newCall } from "./updates.js";
