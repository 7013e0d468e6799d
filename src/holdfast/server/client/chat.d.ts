/** A handle on a chat. */
export class Chat {
    constructor(connection: Connection, id: string);
    _connection: import("./connection.js").Connection;
    id: string;
    /** @returns {Promise<Answer>} */
    _post(path: string, body: object | undefined, { key, signal }: Sending, chatId?: string): Promise<Answer>;
    /** How it stands. @returns {Promise<Schemas["ChatShown"]>} */
    read({ signal }?: Asking): Promise<Schemas["ChatShown"]>;
    /**
     * Its history from a position on, a page of it. With `render: "html"`, what a model said comes as sanitised HTML, too.
     * @returns {Promise<Schemas["MessagePage"]>}
     */
    messages({ signal, ...query }?: {
        start?: number;
        limit?: number;
        render?: "html";
        signal?: AbortSignal;
    }): Promise<Schemas["MessagePage"]>;
    /**
     * The bytes of a file that a message of this chat names, or of one that holds them itself.
     * @returns {Promise<Blob>}
     */
    file(file: {
        uri: string;
    }, { signal }?: Asking): Promise<Blob>;
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
    /** Replace one of the user's messages and everything after it. */
    edit(messageId: string, message: MessageContent, sending?: Sending): Promise<{
        chat_id: string;
        seq: number;
        state: import("./api.js").components["schemas"]["State"];
        dropped: import("./api.js").components["schemas"]["Message"][];
        turn: number;
        message_id: string | null;
        placed: ("queued" | "began" | "joined") | null;
    }>;
    /**
     * A copy of its history under a new id, at rest: all of it, or up to the group that the position `upto` is in.
     * @returns {Promise<Chat>}
     */
    fork({ key, signal, ...given }?: Schemas["ForkGiven"] & Sending): Promise<Chat>;
    /** Try a failed turn again. */
    retry(sending?: Sending): Promise<{
        chat_id: string;
        seq: number;
        state: import("./api.js").components["schemas"]["State"];
        dropped: import("./api.js").components["schemas"]["Message"][];
        turn: number;
        message_id: string | null;
        placed: ("queued" | "began" | "joined") | null;
    }>;
    /** Go on with a turn that a budget ended, without a new message. */
    goOn(sending?: Sending): Promise<{
        chat_id: string;
        seq: number;
        state: import("./api.js").components["schemas"]["State"];
        dropped: import("./api.js").components["schemas"]["Message"][];
        turn: number;
        message_id: string | null;
        placed: ("queued" | "began" | "joined") | null;
    }>;
    /** Have the older part of the history summarised for the model; nothing of it is deleted. */
    compact(sending?: Sending): Promise<{
        chat_id: string;
        seq: number;
        state: import("./api.js").components["schemas"]["State"];
        dropped: import("./api.js").components["schemas"]["Message"][];
        turn: number;
        message_id: string | null;
        placed: ("queued" | "began" | "joined") | null;
    }>;
    /** What waits for its turn, in order, a page of it. @returns {Promise<Schemas["QueuePage"]>} */
    queue({ signal, ...query }?: {
        after?: string;
    } & Asking): Promise<Schemas["QueuePage"]>;
    /** Take a queued message next: what is running now is superseded. */
    promote(messageId: string, sending?: Sending): Promise<{
        chat_id: string;
        seq: number;
        state: import("./api.js").components["schemas"]["State"];
        dropped: import("./api.js").components["schemas"]["Message"][];
        turn: number;
        message_id: string | null;
        placed: ("queued" | "began" | "joined") | null;
    }>;
    /** Take a queued message back: `dropped` holds it. @returns {Promise<Answer>} */
    withdraw(messageId: string, sending?: Sending): Promise<Answer>;
    /** @returns {Promise<Schemas["ChatShown"]>} */
    rename(title: string, { signal }?: Asking): Promise<Schemas["ChatShown"]>;
    /** Put it into the archive, or with `false` back. @returns {Promise<Schemas["ChatShown"]>} */
    archive(archived?: boolean, { signal }?: Asking): Promise<Schemas["ChatShown"]>;
    /** Really gone, with `children` the chats of its sub-agents, too: the ids. Refused unless it is at rest. @returns {Promise<string[]>} */
    delete({ signal, ...query }?: {
        children?: boolean;
    } & Asking): Promise<string[]>;
    /** Why it stands where it stands: what it does or waits for, since when, until when, and what comes next. @returns {Promise<Schemas["StandingShown"]>} */
    why({ signal }?: Asking): Promise<Schemas["StandingShown"]>;
    /** What people and clients have to answer. @returns {Promise<OpenCall[]>} */
    openCalls({ signal }?: Asking): Promise<OpenCall[]>;
    /** One of them, with all of its arguments, however long. @returns {Promise<OpenCall>} */
    openCall(call: AnyCall, { signal }?: Asking): Promise<OpenCall>;
    /** The chats of its sub-agents, with `deep` all that are below it: those at work first. @returns {Promise<Schemas["SubAgentShown"][]>} */
    children({ deep, signal }?: {
        deep?: boolean;
        signal?: AbortSignal;
    }): Promise<Schemas["SubAgentShown"][]>;
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
    _whose(call: AnyCall): {
        id: string;
        chatId: string;
    };
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
     * comes once it is committed, and nothing is taken back. Where the connection breaks it comes back by itself, and says
     * so to `onconnection`. With `render: "html"` there are `Rendered` updates, too: what the model says as sanitised HTML.
     * @param {import("./chat_stream.js").Following & { settled?: boolean, render?: "html" }} [options]
     * @returns {AsyncGenerator<Update, void, void>}
     */
    stream(options?: import("./chat_stream.js").Following & {
        settled?: boolean;
        render?: "html";
    }): AsyncGenerator<Update, void, void>;
    /**
     * The entries of its journal as they are, from its beginning or behind a `cursor` of one: what the updates are made of.
     * Ends when the chat rests; with `follow` it goes on. With `deltas`, the pieces of a response that is open come, too. With
     * `whole_turn` it begins with the turn that the cursor is in, or the last one.
     * @param {import("./chat_stream.js").Following & { deltas?: boolean, whole_turn?: boolean }} [options]
     * @returns {AsyncGenerator<import("./chat_stream.js").JournalLine, void, void>}
     */
    journal(options?: import("./chat_stream.js").Following & {
        deltas?: boolean;
        whole_turn?: boolean;
    }): AsyncGenerator<import("./chat_stream.js").JournalLine, void, void>;
}
export type Connection = import("./connection.js").Connection;
export type Schemas = import("./api.js").components["schemas"];
export type Update = import("./updates.js").Update;
export type Answer = Schemas["AnswerShown"];
export type Turn = Schemas["TurnShown"];
export type OpenCall = Schemas["OpenCallShown"];
export type MessageContent = Schemas["MessageGiven"]["message"];
export type Asking = {
    signal?: AbortSignal;
};
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
