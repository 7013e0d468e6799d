/** @typedef {import("./connection.js").Connection} Connection */
/** @typedef {import("./connection.js").Seen} Seen */
/** @typedef {import("./updates.js").ChatEvent} ChatEvent */
/** @typedef {import("./updates.js").Update} Update */
/** @typedef {{ cursor: string, entry: ChatEvent }} JournalLine an entry, and the place behind it */
/**
 * How a stream is connected: all was told that there is; it is connected and tells what it missed; it is not connected, and
 * comes back; its gate has no connection for it now.
 * @typedef {"live" | "catching up" | "reconnecting" | "resting"} ConnectionState
 */
/**
 * Who may have a connection, and until when: a browser gives one server six of them over HTTP/1.1, for all of its tabs. `enter`
 * waits until there is one, and is called again for the next. A stream loses nothing between two of them.
 * @typedef {{ enter: (signal?: AbortSignal) => Promise<Pass> }} Gate
 */
/** @typedef {{ signal: AbortSignal, leave: () => void }} Pass the right to one: `signal` takes it back, `leave` is told that it was given back */
/**
 * @typedef {object} Following
 * @property {string | null} [after] a cursor: what is behind it
 * @property {boolean} [follow] stay when the chat rests
 * @property {(state: ConnectionState, cause?: unknown) => void} [onconnection] told when it changes; `cause`: why it broke
 * @property {AbortSignal} [signal]
 * @property {Gate} [gate] asked before each connection; without it there is always one
 * @property {number} [patience_ms] how long it tries to come back before it raises ConnectionLost; without it, the client's
 */
/** @returns {AsyncGenerator<Update, void, void>} */
export function updatesOf(connection: Connection, path: string, { after, settled, render, ...following }?: Following & {
    settled?: boolean;
    render?: "html";
}): AsyncGenerator<Update, void, void>;
/** @returns {AsyncGenerator<JournalLine, void, void>} */
export function journalOf(connection: Connection, path: string, { after, deltas, whole_turn, ...following }?: Following & {
    deltas?: boolean;
    whole_turn?: boolean;
}): AsyncGenerator<JournalLine, void, void>;
export type Connection = import("./connection.js").Connection;
export type Seen = import("./connection.js").Seen;
export type ChatEvent = import("./updates.js").ChatEvent;
export type Update = import("./updates.js").Update;
/**
 * an entry, and the place behind it
 */
export type JournalLine = {
    cursor: string;
    entry: ChatEvent;
};
/**
 * How a stream is connected: all was told that there is; it is connected and tells what it missed; it is not connected, and
 * comes back; its gate has no connection for it now.
 */
export type ConnectionState = "live" | "catching up" | "reconnecting" | "resting";
/**
 * Who may have a connection, and until when: a browser gives one server six of them over HTTP/1.1, for all of its tabs. `enter`
 * waits until there is one, and is called again for the next. A stream loses nothing between two of them.
 */
export type Gate = {
    enter: (signal?: AbortSignal) => Promise<Pass>;
};
/**
 * the right to one: `signal` takes it back, `leave` is told that it was given back
 */
export type Pass = {
    signal: AbortSignal;
    leave: () => void;
};
export type Following = {
    /**
     * a cursor: what is behind it
     */
    after?: string | null | undefined;
    /**
     * stay when the chat rests
     */
    follow?: boolean | undefined;
    /**
     * told when it changes; `cause`: why it broke
     */
    onconnection?: ((state: ConnectionState, cause?: unknown) => void) | undefined;
    signal?: AbortSignal | undefined;
    /**
     * asked before each connection; without it there is always one
     */
    gate?: Gate | undefined;
    /**
     * how long it tries to come back before it raises ConnectionLost; without it, the client's
     */
    patience_ms?: number | undefined;
};
