/**
 * A chat as it was at any place of its journal: its messages, open calls, queue and state. Pure: entries in, a value out.
 *
 * It begins with the chat's first entry, or with the first of a window; then it knows only what came since. At the last
 * entry its messages are what `GET /api/chats/ID/messages` shows.
 */

/** @typedef {{ kind: string, seq: number, at: number, cursor: string, [name: string]: any }} Entry one of the journal, with its cursor */
/** @typedef {{ id: string, role: string, parts: any[], [name: string]: any }} Message */
/** @typedef {{ pos: number, message: Message, cursor: string }} Placed */
/** @typedef {{ id: string, name: string, arguments: string, state: string, question: string | null, since: number, asked_at: number }} Call asked_at: the position of the response that asked for it */
/** @typedef {{ message: Message, mode: string }} Queued */
/**
 * @typedef {object} AsOf
 * @property {number} seq
 * @property {number | null} at
 * @property {string} agent
 * @property {string | null} title
 * @property {"idle" | "running" | "stopping" | "waiting" | "failed"} state
 * @property {number} turn
 * @property {string | null} cause
 * @property {string | null} worker who had it, where that was told
 * @property {number} length positions that are taken, those of results that are not there yet included
 * @property {Placed[]} messages
 * @property {Call[]} calls those that are not answered
 * @property {Queued[]} queue
 */

export class AsOfFold {
  /** @param {{ length?: number, turn?: number }} [start] of a window: what the chat had before it */
  constructor({ length = 0, turn = 0 } = {}) {
    /** @type {Map<number, Placed>} */
    this._placed = new Map();
    /** @type {Map<string, Call & { pos: number }>} */
    this._calls = new Map();
    /** @type {Queued[]} */
    this._queue = [];
    this._inTurn = false;
    /** @type {Omit<AsOf, "messages" | "calls" | "queue">} */
    this._chat = { seq: 0, at: null, agent: "", title: null, state: "idle", turn, cause: null, worker: null, length };
  }

  /** @returns {AsOf} */
  get value() {
    const messages = [...this._placed.values()].sort((one, other) => one.pos - other.pos);
    const calls = [...this._calls.values()].map(({ pos: _, ...call }) => call);
    return { ...this._chat, messages, calls, queue: [...this._queue] };
  }

  take(/** @type {Entry} */ entry) {
    this._chat.seq = entry.seq;
    this._chat.at = entry.at;
    TAKE[entry.kind]?.(this, entry);
  }

  _set(/** @type {Partial<AsOf>} */ fields) {
    Object.assign(this._chat, fields);
  }

  _message(/** @type {Entry} */ entry) {
    const message = /** @type {Message} */ (entry.message);
    this._queue = this._queue.filter((queued) => queued.message.id !== message.id);
    if (message.role === "tool") return this._result(entry, message);
    const asked_at = this._chat.length;
    this._place(asked_at, message, entry.cursor);
    this._chat.length += 1;
    const asked = message.parts.filter((part) => part.kind === "tool_call");
    if (asked.length) this._calls.clear();
    for (const part of asked) {
      const state = (entry.started ?? []).includes(part.call_id) ? "started" : "planned";
      const pos = this._chat.length;
      this._calls.set(part.call_id, { id: part.call_id, name: part.name, arguments: part.arguments, state, question: null, since: entry.at, asked_at, pos });
      this._chat.length += 1; // kept free for its result
    }
  }

  /** It stands where its call kept a place for it, if that was not cut away. */
  _result(/** @type {Entry} */ entry, /** @type {Message} */ message) {
    for (const part of message.parts) {
      const call = this._calls.get(part.call_id);
      this._calls.delete(part.call_id);
      if (call && !entry.off_history) this._place(call.pos, message, entry.cursor);
    }
  }

  _place(/** @type {number} */ pos, /** @type {Message} */ message, /** @type {string} */ cursor) {
    this._placed.set(pos, { pos, message, cursor });
  }

  _cut(/** @type {number} */ length) {
    for (const pos of [...this._placed.keys()]) if (pos >= length) this._placed.delete(pos);
    this._chat.length = length;
  }

  _change(/** @type {string} */ id, /** @type {Partial<Call>} */ fields) {
    const call = this._calls.get(id);
    if (call) this._calls.set(id, { ...call, ...fields });
  }

  _end(/** @type {Entry} */ entry) {
    this._inTurn = false; // what a chat does between turns, a summary, is told when it is over
    this._set({ state: entry.state === "failed" ? "failed" : "idle", cause: entry.cause ?? null, turn: entry.turn });
    if (entry.state !== "running") this._set({ worker: null });
  }

  _begin(/** @type {Partial<AsOf>} */ fields) {
    this._inTurn = true;
    this._set({ state: "running", cause: null, ...fields });
  }

  _promote(/** @type {string} */ id) {
    const found = this._queue.filter((queued) => queued.message.id === id);
    this._queue = [...found, ...this._queue.filter((queued) => queued.message.id !== id)];
  }
}

/** What each kind of entry changes. A kind that is not here changes nothing that is shown. @type {Record<string, (fold: AsOfFold, entry: Entry) => void>} */
const TAKE = {
  "chat.created": (fold, entry) => fold._set({ agent: entry.agent }),
  "chat.agent": (fold, entry) => fold._set({ agent: entry.agent }),
  "chat.renamed": (fold, entry) => fold._set({ title: entry.title }),
  message: (fold, entry) => fold._message(entry),
  "message.queued": (fold, entry) => {
    const queued = { message: entry.message, mode: entry.mode };
    fold._queue = entry.first ? [queued, ...fold._queue] : [...fold._queue, queued];
  },
  "message.promoted": (fold, entry) => fold._promote(entry.message_id),
  "message.dropped": (fold, entry) => {
    fold._queue = fold._queue.filter((queued) => !entry.message_ids.includes(queued.message.id));
  },
  "history.cut": (fold, entry) => fold._cut(entry.length),
  "turn.started": (fold, entry) => fold._begin({ turn: entry.turn }),
  "turn.ended": (fold, entry) => fold._end(entry),
  "turn.waiting": (fold) => fold._set({ state: "waiting", worker: null }),
  "turn.resumed": (fold) => fold._set({ state: "running" }),
  "stop.requested": (fold, entry) => {
    if (fold._inTurn) fold._set({ state: "stopping", cause: entry.cause });
  },
  "chat.retried": (fold) => fold._begin({}),
  "chat.failed": (fold) => fold._set({ state: "failed" }),
  "chat.taken_over": (fold, entry) => fold._set({ worker: entry.worker }),
  "chat.handed_over": (fold, entry) => {
    fold._set({ worker: null });
    for (const id of entry.never_begun ?? []) fold._change(id, { state: "planned" });
  },
  "calls.started": (fold, entry) => {
    for (const id of entry.call_ids) fold._change(id, { state: "started", since: entry.at });
  },
  "call.changed": (fold, entry) => fold._change(entry.call_id, { state: entry.state, question: entry.question ?? null, since: entry.at }),
};

/** As it was just after the entry with this number. */
export function asOf(/** @type {Entry[]} */ entries, /** @type {number} */ seq, /** @type {{ length?: number, turn?: number }} */ start = {}) {
  const fold = new AsOfFold(start);
  for (const entry of entries) {
    if (entry.seq > seq) break;
    fold.take(entry);
  }
  return fold.value;
}

/** @typedef {{ length: number, open: string[], cut: boolean }} ForkPlace `length`: how many positions; `open`: calls that are left out; `cut`: an edit took more away */

/**
 * Where the chat can be forked to be as it was then. What was asked for and not answered is left out, with the response that
 * asked: what came of it is of a later time. What an edit has cut away since, no fork has.
 * @returns {ForkPlace}
 */
export function forkPlace(/** @type {Entry[]} */ entries, /** @type {AsOf} */ value) {
  const open = value.calls.filter((call) => call.asked_at < value.length);
  const upto = Math.min(value.length, ...open.map((call) => call.asked_at));
  const cuts = entries.filter((entry) => entry.seq > value.seq && entry.kind === "history.cut").map((entry) => entry.length);
  const kept = Math.min(upto, ...cuts);
  return { length: kept, open: open.map((call) => call.name), cut: kept < upto };
}
