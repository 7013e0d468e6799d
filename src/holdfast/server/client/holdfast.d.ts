export * from "./errors.js";
export { Fold } from "./fold.js";
export { takeBack } from "./shown_words.js";
export { TurnView } from "./updates.js";
/** A server, and the right to use it: a token, or the cookie that a browser has. */
export class Holdfast {
    /** @param {import("./connection.js").Options} [options] `url` is where the server is mounted: "" is this page's own. */
    constructor(options?: import("./connection.js").Options);
    _connection: Connection;
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
/** A handle on a chat. */
export class Chat {
    constructor(connection: Connection, id: string);
    _connection: Connection;
    id: string;
    /** @returns {Promise<Answer>} */
    _post(path: string, body: object | undefined, { key, signal }: Sending, chatId?: string): Promise<Answer>;
    /** How it stands. @returns {Promise<Schemas["ChatShown"]>} */
    read({ signal }?: {
        signal?: AbortSignal;
    }): Promise<Schemas["ChatShown"]>;
    /** Its history from a position on, a page of it. @returns {Promise<Schemas["MessagePage"]>} */
    messages({ signal, ...query }?: {
        start?: number;
        limit?: number;
        signal?: AbortSignal;
    }): Promise<Schemas["MessagePage"]>;
    /**
     * The bytes of a file that a message of this chat names, or of one that holds them itself.
     * @returns {Promise<Blob>}
     */
    file(file: {
        uri: string;
    }, { signal }?: {
        signal?: AbortSignal;
    }): Promise<Blob>;
    /** `mode`: `queue` (after what is going on), `steer` (into the running turn), `interrupt` (now). */
    send(message: Schemas["MessageGiven"]["message"], { key, signal, ...more }?: Omit<Schemas["MessageGiven"], "message"> & Sending): Promise<{
        chat_id: string;
        seq: number;
        state: import("./api.js").components["schemas"]["State"];
        dropped: import("./api.js").components["schemas"]["Message"][];
        turn: number;
        message_id: string | null;
        placed: ("queued" | "began" | "joined") | null;
    }>;
    /** End the turn: what was said so far is kept. */
    stop({ clear_queue, ...sending }?: {
        clear_queue?: boolean;
    } & Sending): Promise<{
        chat_id: string;
        seq: number;
        state: import("./api.js").components["schemas"]["State"];
        dropped: import("./api.js").components["schemas"]["Message"][];
        turn: number;
        message_id: string | null;
        placed: ("queued" | "began" | "joined") | null;
    }>;
    /** What people and clients have to answer. @returns {Promise<OpenCall[]>} */
    openCalls({ signal }?: {
        signal?: AbortSignal;
    }): Promise<OpenCall[]>;
    /** The chats of its sub-agents, with `deep` all that are below it: those at work first. */
    children({ deep, signal }?: {
        deep?: boolean;
        signal?: AbortSignal;
    }): Promise<any>;
    /**
     * Of one of `openCalls`, for the arguments that it shows: refused if others would run by then. `always` keeps the
     * rules of its `offer`, too.
     * @param {AnyCall} call
     * @param {Omit<Schemas["ApproveGiven"], "digest"> & Sending} [options]
     */
    approve(call: AnyCall, { key, signal, ...more }?: Omit<Schemas["ApproveGiven"], "digest"> & Sending): Promise<{
        chat_id: string;
        seq: number;
        state: import("./api.js").components["schemas"]["State"];
        dropped: import("./api.js").components["schemas"]["Message"][];
        turn: number;
        message_id: string | null;
        placed: ("queued" | "began" | "joined") | null;
    }>;
    /** `words` reach the model. */
    deny(call: AnyCall, words?: string, sending?: Sending): Promise<{
        chat_id: string;
        seq: number;
        state: import("./api.js").components["schemas"]["State"];
        dropped: import("./api.js").components["schemas"]["Message"][];
        turn: number;
        message_id: string | null;
        placed: ("queued" | "began" | "joined") | null;
    }>;
    /** The answer to a question, or the result of a tool that this client runs. */
    answer(call: AnyCall, content: string, { error, ...sending }?: {
        error?: boolean;
    } & Sending): Promise<{
        chat_id: string;
        seq: number;
        state: import("./api.js").components["schemas"]["State"];
        dropped: import("./api.js").components["schemas"]["Message"][];
        turn: number;
        message_id: string | null;
        placed: ("queued" | "began" | "joined") | null;
    }>;
    /** In the chat that the call is of, be it a sub-agent's. */
    _answer(call: AnyCall, verb: string, body: object | undefined, sending: Sending): Promise<{
        chat_id: string;
        seq: number;
        state: import("./api.js").components["schemas"]["State"];
        dropped: import("./api.js").components["schemas"]["Message"][];
        turn: number;
        message_id: string | null;
        placed: ("queued" | "began" | "joined") | null;
    }>;
    /**
     * The turn that the chat is in, or was in last, once it is over or waits for people: `state` says which. Raises
     * TurnTimeout, which has the turn; it goes on.
     * @returns {Promise<Turn>}
     */
    turn({ number, timeout_ms, signal }?: {
        number?: number;
        timeout_ms?: number;
        signal?: AbortSignal;
    }): Promise<Turn>;
    /**
     * What there is to show, reconciled: text as it grows, calls, retries, the end of the turn. Begins with the turn that
     * goes on, or the last one; with the `cursor` of an update, behind that, wherever it was read; with "", at the beginning
     * of the chat. Ends when the chat rests or waits for a person or a client; with `follow` it goes on. With `settled`, text
     * comes once it is committed, and nothing is taken back. Where the connection breaks it comes back by itself.
     * @param {{ after?: string | null, settled?: boolean, follow?: boolean, signal?: AbortSignal }} [options]
     * @returns {AsyncGenerator<Update, void, void>}
     */
    stream({ after, settled, follow, signal }?: {
        after?: string | null;
        settled?: boolean;
        follow?: boolean;
        signal?: AbortSignal;
    }): AsyncGenerator<Update, void, void>;
}
export type Schemas = import("./api.js").components["schemas"];
export type Update = import("./updates.js").Update;
export type CallView = import("./updates.js").CallView;
export type ChatEvent = import("./updates.js").ChatEvent;
export type Answer = Schemas["AnswerShown"];
export type Turn = Schemas["TurnShown"];
export type OpenCall = Schemas["OpenCallShown"];
export type Content = Schemas["NewChatGiven"]["message"];
export type Sending = {
    key?: string;
    signal?: AbortSignal;
};
export type AnyCall = {
    id: string;
    chat_id?: string | null;
} | {
    call_id: string;
    chat_id?: string | null;
    digest?: string;
} | string;
import { Connection } from "./connection.js";
