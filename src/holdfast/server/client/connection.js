/**
 * Requests and streams of events over `fetch`: each bounded in time, tried again where that is safe, ended by the caller's
 * signal. `EventSource` is not used: it cannot send a token.
 */

import { ConnectionLost, errorOf } from "./errors.js";

const REQUEST_MS = 30_000;
const SILENCE_MS = 35_000; // the server says something every 10 s
const BACKOFF_MS = 250; // doubled up to the next
const BACKOFF_MS_MAX = 5_000;

/** @typedef {{ url?: string | undefined, token?: string | undefined, patience_ms?: number | undefined, fetch?: typeof fetch | undefined }} Options */
/** @typedef {{ id: string, event: string, data: any }} Seen one event of a stream */
/** @typedef {{ query?: object, body?: object | undefined, key?: string | undefined, signal?: AbortSignal | undefined, ms?: number, bytes?: boolean, also?: number }} Asked `also`: a status that is an answer like 200 */
/** @typedef {{ cause?: unknown }} Lost why a stream ended */

/** As long as that, or until the signal. */
function pause(/** @type {number} */ ms, /** @type {AbortSignal | undefined} */ signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve(undefined);
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
    if (signal?.aborted) stop();
  });
}

/** How long to wait between tries, and when to give up. */
export class Backoff {
  constructor(/** @type {number} */ patienceMs) {
    this._patienceMs = patienceMs;
    this.reset();
  }

  /** All is well, for as long as nobody has to wait. */
  reset() {
    this._ms = BACKOFF_MS;
    /** @type {number | null} the first of the waits in a row */
    this._since = null;
  }

  /** Raises ConnectionLost where it was long enough. */
  async wait(/** @type {unknown} */ cause, /** @type {AbortSignal | undefined} */ signal) {
    const ms = (this._ms ?? BACKOFF_MS) * (0.5 + Math.random());
    this._since ??= Date.now();
    if (Date.now() + ms - this._since > this._patienceMs) {
      throw new ConnectionLost(`no answer for ${this._patienceMs} ms (patience_ms)`, { cause });
    }
    await pause(ms, signal);
    this._ms = Math.min(2 * (this._ms ?? BACKOFF_MS), BACKOFF_MS_MAX);
  }
}

/** An AbortController that the caller's signal and a timer end, too. */
class Bound {
  constructor(/** @type {AbortSignal | undefined} */ signal, /** @type {number} */ ms) {
    this._signal = signal;
    this._controller = new AbortController();
    this._stop = () => this._controller.abort(signal?.reason);
    signal?.addEventListener("abort", this._stop, { once: true });
    if (signal?.aborted) this._stop();
    this.restart(ms);
  }

  get signal() {
    return this._controller.signal;
  }

  restart(/** @type {number} */ ms) {
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this._controller.abort(new Error(`nothing came for ${ms} ms`)), ms);
  }

  end() {
    clearTimeout(this._timer);
    this._signal?.removeEventListener("abort", this._stop);
    this._controller.abort();
  }
}

/** A name for a request, so that the same one again does nothing again. */
export function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Connection {
  constructor(/** @type {Options} */ { url = "", token, patience_ms = 120_000, fetch: by } = {}) {
    this._url = url.replace(/\/+$/, "");
    this._token = token;
    this.patienceMs = patience_ms;
    this._fetch = by ?? ((/** @type {any} */ address, /** @type {any} */ options) => fetch(address, options));
  }

  /** Asks until there is an answer. A request that changes something has a key: however often it is sent, it is done once. */
  async ask(/** @type {string} */ method, /** @type {string} */ path, /** @type {Asked} */ { query, body, key, signal, ms = REQUEST_MS, bytes = false, also } = {}) {
    const backoff = new Backoff(this.patienceMs);
    const sent = method === "GET" ? undefined : key ?? newKey();
    for (;;) {
      signal?.throwIfAborted();
      const bound = new Bound(signal, ms);
      let cause;
      try {
        const answer = await this._send(method, path, query, body, sent, bound.signal);
        if (answer.ok || answer.status === also) return answer.status === 204 ? null : await (bytes ? answer.blob() : answer.json());
        const error = await problemOf(answer);
        if (answer.status !== 503 && answer.status !== 429) throw error;
        cause = error;
      } catch (error) {
        if (signal?.aborted) throw signal.reason;
        if (error instanceof Error && "problem" in error) throw error; // an answer, and no other would come
        cause = error;
      } finally {
        bound.end();
      }
      await backoff.wait(cause, signal);
    }
  }

  /**
   * The events of one connection, until it ends, however that happens: `open` first, once there is one. Raises HoldfastError
   * where coming back is useless.
   * @returns {AsyncGenerator<Seen, void, void>}
   */
  async *events(/** @type {string} */ path, /** @type {object} */ query, /** @type {AbortSignal | undefined} */ signal, /** @type {Lost} */ lost = {}) {
    const bound = new Bound(signal, REQUEST_MS);
    try {
      const answer = await this._send("GET", path, query, undefined, undefined, bound.signal);
      if (answer.status === 204) return yield { id: "", event: "end", data: {} };
      if (!answer.ok) {
        const error = await problemOf(answer);
        lost.cause = error;
        if (answer.status >= 500 || answer.status === 429) return;
        throw error;
      }
      yield { id: "", event: "open", data: {} };
      const parser = new EventParser();
      const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
      const decoder = new TextDecoder();
      for (;;) {
        bound.restart(SILENCE_MS);
        const { done, value } = await reader.read();
        if (done) return;
        yield* parser.take(decoder.decode(value, { stream: true }));
      }
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      if (error instanceof Error && "problem" in error) throw error;
      lost.cause = error;
    } finally {
      bound.end();
    }
  }

  /** @returns {Promise<Response>} */
  _send(
    /** @type {string} */ method, /** @type {string} */ path, /** @type {object | undefined} */ query,
    /** @type {object | undefined} */ body, /** @type {string | undefined} */ key, /** @type {AbortSignal} */ signal,
  ) {
    /** @type {Record<string, string>} */
    const headers = {};
    if (this._token) headers["Authorization"] = `Bearer ${this._token}`;
    if (key) headers["Idempotency-Key"] = key;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const given = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null);
    const pairs = given.flatMap(([name, value]) => [value].flat().map((one) => [name, String(one)]));
    const asked = new URLSearchParams(pairs).toString();
    return this._fetch(`${this._url}${path}${asked ? `?${asked}` : ""}`, {
      method, headers, signal, cache: "no-store", credentials: "same-origin",
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  }
}

async function problemOf(/** @type {Response} */ answer) {
  let problem = null;
  try {
    problem = await answer.json();
  } catch {
    // not ours: a proxy's
  }
  return errorOf(answer.status, problem);
}

/** Takes a stream of server-sent events apart, by the rules of the HTML standard as far as our server uses them. */
export class EventParser {
  constructor() {
    this._rest = "";
    this._clear();
  }

  _clear() {
    this._event = "message";
    this._id = "";
    /** @type {string[]} */
    this._data = [];
  }

  /** @returns {Generator<Seen, void, void>} */
  *take(/** @type {string} */ text) {
    const lines = (this._rest + text).split("\n");
    this._rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") {
        const [id, event, data] = [this._id ?? "", this._event ?? "", this._data ?? []];
        this._clear();
        if (data.length) yield { id, event, data: JSON.parse(data.join("\n")) };
        continue;
      }
      const at = line.indexOf(":");
      const name = at < 0 ? line : line.slice(0, at);
      const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
      if (name === "event") this._event = value;
      else if (name === "id") this._id = value;
      else if (name === "data") this._data?.push(value);
    }
  }
}
