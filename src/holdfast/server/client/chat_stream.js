/**
 * What a chat tells as it happens, over any number of connections: updates, or the journal as it is.
 */

import { Backoff } from "./connection.js";
import { NotFound, errorOf } from "./errors.js";
import { Fold } from "./fold.js";
import { parseCursor } from "./update_cursor.js";

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
export async function* updatesOf(
  /** @type {Connection} */ connection, /** @type {string} */ path,
  /** @type {Following & { settled?: boolean, render?: "html" }} */ { after = null, settled = false, render, ...following } = {},
) {
  const reader = new UpdateReader(after, settled, render);
  for await (const seen of eventsOf(connection, path, reader, following)) {
    yield* reader.take(seen.event, seen.data, seen.id);
    if (reader.paused && !following.follow) return;
  }
}

/** @returns {AsyncGenerator<JournalLine, void, void>} */
export async function* journalOf(
  /** @type {Connection} */ connection, /** @type {string} */ path,
  /** @type {Following & { deltas?: boolean, whole_turn?: boolean }} */ { after = null, deltas = false, whole_turn = false, ...following } = {},
) {
  const place = { query: { after: after || null, live: true, whole_turn }, reconnect: () => {} };
  for await (const { event, data, id } of eventsOf(connection, path, place, following)) {
    if (!id) continue;
    Object.assign(place.query, { after: id, whole_turn: false });
    if (deltas || event !== "delta") yield { cursor: id, entry: data };
  }
}

/**
 * The events of a chat, however often the connection breaks. `place` says what to ask for next.
 * @returns {AsyncGenerator<Seen, void, void>}
 */
async function* eventsOf(
  /** @type {Connection} */ connection, /** @type {string} */ path,
  /** @type {{ query: object, reconnect: () => void }} */ place,
  /** @type {Following} */ { follow = false, onconnection, signal, gate, patience_ms = connection.patienceMs },
) {
  /** @type {ConnectionState | null} */
  let known = null;
  const tell = (/** @type {ConnectionState} */ state, /** @type {unknown} */ cause = undefined) => {
    if (state === known) return;
    known = state;
    onconnection?.(state, cause);
  };
  const backoff = new Backoff(patience_ms);
  for (;;) {
    signal?.throwIfAborted();
    const pass = await gate?.enter(signal);
    const bound = new EitherEnds(signal, pass?.signal);
    /** @type {import("./connection.js").Lost} */
    const lost = {};
    let rests = false;
    try {
      for await (const seen of connection.events(`${path}/events`, { ...place.query, follow }, bound.signal, lost)) {
        if (seen.event === "open") tell("catching up");
        else backoff.reset();
        if (seen.event === "live") tell("live");
        if (seen.event === "gone") throw new NotFound("the chat was deleted", { code: "not_found" });
        if (seen.event === "problem") throw errorOf(seen.data.status, seen.data);
        if (seen.event === "end") return;
        if (seen.event === "reconnect") break;
        yield seen;
      }
    } catch (error) {
      if (signal?.aborted || !pass?.signal.aborted) throw error;
    } finally {
      bound.end();
      rests = pass?.signal.aborted ?? false; // by the gate: whose `leave` may give the same signal
      pass?.leave();
    }
    place.reconnect();
    if (rests) {
      tell("resting");
      continue;
    }
    tell("reconnecting", lost.cause);
    await backoff.wait(lost.cause, signal);
  }
}

/** A signal that either of two gives. */
class EitherEnds {
  constructor(/** @type {(AbortSignal | undefined)[]} */ ...signals) {
    this._controller = new AbortController();
    this._stop = (/** @type {Event | { target: any }} */ { target }) => this._controller.abort(target.reason);
    this._signals = signals.filter((signal) => signal !== undefined);
    for (const signal of this._signals) {
      signal.addEventListener("abort", this._stop, { once: true });
      if (signal.aborted) this._stop({ target: signal });
    }
  }

  get signal() {
    return this._controller.signal;
  }

  end() {
    for (const signal of this._signals) signal.removeEventListener("abort", this._stop);
  }
}

/** One reader's way through a chat, over any number of connections. */
class UpdateReader {
  constructor(/** @type {string | null} */ after, /** @type {boolean} */ settled, /** @type {"html" | undefined} */ render) {
    this._after = after;
    this._render = render;
    /** @type {Update | null} */
    this._last = null;
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
      ? { after: this._after, whole_turn: true, live: true, render: this._render }
      : { after: this._place, live: true, render: this._render };
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
  take(/** @type {string} */ event, /** @type {any} */ data, /** @type {string} */ id) {
    if (event === "live") this._live = true;
    if (event === "place" && this._parsed) {
      this._fold.resume(this._parsed.mark, this._parsed.place);
      this._again = false;
    }
    if (event === "html" && !this._again) return [this._rendered(data)];
    if (!id) return [];
    const updates = this._fold.take(data, id);
    if (this._again) return [];
    this._place = id;
    this._last = updates.at(-1) ?? this._last;
    return updates;
  }

  /** It moves no reader's place. @returns {Update} */
  _rendered(/** @type {any} */ data) {
    const { attempt, html, block = null, message_id = null } = data;
    const cursor = this._last?.cursor ?? this._after ?? "";
    return { kind: "Rendered", attempt, block, message_id, html, turn: this._fold.turn, cursor };
  }
}
