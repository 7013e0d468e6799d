/** A name for a request, so that the same one again does nothing again. */
export function newKey(): string;
/** How long to wait between tries, and when to give up. */
export class Backoff {
    constructor(patienceMs: number);
    _patienceMs: number;
    /** All is well, for as long as nobody has to wait. */
    reset(): void;
    _ms: any;
    /** @type {number | null} the first of the waits in a row */
    _since: number | null | undefined;
    /** Raises ConnectionLost where it was long enough. */
    wait(cause: unknown, signal: AbortSignal | undefined): Promise<void>;
}
export class Connection {
    constructor({ url, token, patience_ms, fetch: by }?: Options);
    _url: string;
    _token: string | undefined;
    patienceMs: number;
    _fetch: typeof fetch;
    /** Asks until there is an answer. A request that changes something has a key: however often it is sent, it is done once. */
    ask(method: string, path: string, { query, body, key, signal, ms, bytes, also }?: Asked): Promise<any>;
    /**
     * The events of one connection, until it ends, however that happens: `open` first, once there is one. Raises HoldfastError
     * where coming back is useless.
     * @returns {AsyncGenerator<Seen, void, void>}
     */
    events(path: string, query: object, signal: AbortSignal | undefined, lost?: Lost): AsyncGenerator<Seen, void, void>;
    /** @returns {Promise<Response>} */
    _send(method: string, path: string, query: object | undefined, body: object | undefined, key: string | undefined, signal: AbortSignal): Promise<Response>;
}
/** Takes a stream of server-sent events apart, by the rules of the HTML standard as far as our server uses them. */
export class EventParser {
    _rest: string;
    _clear(): void;
    _event: string | undefined;
    _id: string | undefined;
    /** @type {string[]} */
    _data: string[] | undefined;
    /** @returns {Generator<Seen, void, void>} */
    take(text: string): Generator<Seen, void, void>;
}
export type Options = {
    url?: string | undefined;
    token?: string | undefined;
    patience_ms?: number | undefined;
    fetch?: typeof fetch | undefined;
};
/**
 * one event of a stream
 */
export type Seen = {
    id: string;
    event: string;
    data: any;
};
/**
 * `also`: a status that is an answer like 200
 */
export type Asked = {
    query?: object;
    body?: object | undefined;
    key?: string | undefined;
    signal?: AbortSignal | undefined;
    ms?: number;
    bytes?: boolean;
    also?: number;
};
/**
 * why a stream ended
 */
export type Lost = {
    cause?: unknown;
};
