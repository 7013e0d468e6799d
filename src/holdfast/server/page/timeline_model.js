/**
 * A chat's life as spans of time: turns, attempts at the model, tool calls, waits, and what happened when a worker was lost.
 * Pure: the journal's entries in, a picture out; no clock, no document.
 *
 * A hold is the time in which one worker has the chat. Its last sign before it was lost is the last thing that it wrote, or
 * the last renewal of its lease (`chat.handed_over` says it); the next hold's first sign is `chat.taken_over`. What lies
 * between them is the gap, measured and not guessed. Journals of older versions say less: there the first thing that the
 * next worker wrote ends the gap, and workers have no names.
 */

/** @typedef {import("./as_of.js").Entry} Entry */
/** @typedef {"turn" | "attempt" | "retry" | "compaction" | "call" | "approval" | "question" | "client" | "child" | "timer" | "due" | "stop" | "gap" | "handover"} SpanKind */
/** @typedef {"running" | "done" | "failed" | "lost" | "stopped" | "denied" | "cancelled" | "unknown" | "answered" | "over"} SpanState */
/**
 * @typedef {object} Span
 * @property {string} id the same in every picture of this chat
 * @property {SpanKind} kind
 * @property {SpanState} state
 * @property {number} from
 * @property {number | null} until null: it goes on
 * @property {string} name what it is of: a tool, a model, a turn
 * @property {string} words what it was, in a sentence
 * @property {number[]} seqs of its entries; of a turn the first and the last
 * @property {Hold | null} hold whose it was
 * @property {number | null} streams_at when the first piece of an answer came
 * @property {string | null} call_id
 * @property {string | null} child_id the chat of the sub-agent that it waits for
 */
/** @typedef {{ id: number, worker: string | null, from: number, until: number | null, last: number, cause: string | null }} Hold */
/** @typedef {{ seq: number, at: number, kind: string, words: string }} Mark something that took no time */
/** @typedef {{ from: number, until: number, spans: Span[], marks: Mark[], holds: Hold[] }} Picture */

const EXTERNAL = { question: "a person's answer", client: "a client's result", child: "a sub-agent", timer: "the clock" };

/** @type {Record<string, string>} */
export const CAUSES = {
  shutdown: "let the chat go",
  crash: "died while it held the chat",
  lease_lost: "went silent for longer than its lease",
};

/** As a person says it. */
export function lasting(/** @type {number} */ ms) {
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 60) return `${minutes} min ${Math.round((ms % 60_000) / 1_000)} s`;
  if (minutes < 2_880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1_440)} d ${Math.floor((minutes % 1_440) / 60)} h`;
}

/** `worker_01m7…bcde`: what tells one from another are its last letters. */
export function shortName(/** @type {string} */ name) {
  return name.length > 16 && name.startsWith("worker_") ? `worker …${name.slice(-5)}` : name;
}

export class TimelineModel {
  constructor() {
    /** @type {Entry[]} */
    this.entries = [];
    /** @type {Span[]} */
    this.spans = [];
    /** @type {Mark[]} */
    this.marks = [];
    /** @type {Hold[]} */
    this.holds = [];
    /** @type {Hold | null} */
    this._hold = null;
    /** @type {Partial<Record<"turn" | "attempt" | "retry" | "stop" | "loss" | "due", Span | null>>} those that are open */
    this._open = {};
    /** @type {Map<string, { name: string, run: Span | null, wait: Span | null, lost: Span | null }>} calls that are not answered; `lost`: the run that was lost with its worker */
    this._calls = new Map();
    this._asking = false; // the model is next
  }

  /** One event of the stream, in order. Pieces of an answer are counted and not kept. */
  take(/** @type {any} */ data, /** @type {string} */ cursor) {
    if (data.kind === "delta") return this._delta(data);
    const entry = /** @type {Entry} */ ({ ...data, cursor });
    this.entries.push(entry);
    this._open.turn?.seqs.splice(1, 1, entry.seq);
    TAKE[entry.kind]?.(this, entry);
  }

  /** Who has the chat now, where another source says it. */
  nameHolder(/** @type {string} */ worker) {
    if (this._hold && this._hold.worker === null) this._hold.worker = worker;
  }

  /** @returns {Picture} */
  picture(/** @type {number} */ now) {
    const instants = [...this.entries.map((entry) => entry.at), ...this.spans.flatMap((span) => [span.from, span.until ?? now])];
    const from = instants.length ? instants.reduce((one, other) => Math.min(one, other)) : now;
    const until = instants.length ? instants.reduce((one, other) => Math.max(one, other)) : now;
    const spans = this.spans.filter((span) => span.from <= (span.until ?? now));
    return { from, until: Math.max(until, from + 1), spans, marks: this.marks, holds: this.holds };
  }

  /** The entries that a span is made of. */
  entriesOf(/** @type {Span} */ span) {
    const [first = 0, last = first] = span.seqs;
    if (span.kind === "turn") return this.entries.filter((entry) => entry.seq >= first && entry.seq <= last);
    const wanted = new Set(span.seqs);
    return this.entries.filter((entry) => wanted.has(entry.seq));
  }

  /** The narrowest span that an entry belongs to. */
  spanOf(/** @type {number} */ seq) {
    const found = this.spans.filter((span) => this._has(span, seq));
    return found.sort((one, other) => Number(one.kind === "turn") - Number(other.kind === "turn"))[0] ?? null;
  }

  _has(/** @type {Span} */ span, /** @type {number} */ seq) {
    if (span.kind !== "turn") return span.seqs.includes(seq);
    return seq >= (span.seqs[0] ?? 0) && seq <= (span.seqs[1] ?? 0);
  }

  // --- spans and holds -----------------------------------------------------------------------------------------------

  /** @returns {Span} */
  _begin(/** @type {SpanKind} */ kind, /** @type {number} */ from, /** @type {Partial<Span>} */ fields) {
    const id = `${kind}-${fields.call_id ?? ""}${fields.seqs?.[0] ?? 0}`;
    /** @type {Span} */
    const span = {
      id, kind, from, until: null, state: "running", name: "", words: "", seqs: [], hold: this._hold, streams_at: null,
      call_id: null, child_id: null, ...fields,
    };
    this.spans.push(span);
    return span;
  }

  /** Over, and this is what came of it. */
  _end(/** @type {Span | null | undefined} */ span, /** @type {number} */ until, /** @type {SpanState} */ state, words = "", /** @type {number | null} */ seq = null) {
    if (!span || span.until !== null) return;
    span.until = until;
    span.state = state;
    if (words) span.words = words;
    if (seq !== null) span.seqs.push(seq);
    if (span.until < span.from) this.spans.splice(this.spans.indexOf(span), 1); // it would have begun later
  }

  _mark(/** @type {Entry} */ entry, /** @type {string} */ words, kind = entry.kind) {
    this.marks.push({ seq: entry.seq, at: entry.at, kind, words });
  }

  _take(/** @type {number} */ at, /** @type {string | null} */ worker) {
    this._hold = { id: this.holds.length, worker, from: at, until: null, last: at, cause: null };
    this.holds.push(this._hold);
  }

  /** The worker that has it did something: who waited for one waits no more. */
  _sign(/** @type {number} */ at) {
    if (this._hold === null) this._take(at, null);
    if (this._hold) this._hold.last = Math.max(this._hold.last, at);
    this._found(at, this._hold?.worker ?? null, null);
  }

  _found(/** @type {number} */ at, /** @type {string | null} */ worker, /** @type {number | null} */ seq) {
    const { loss, due } = this._open;
    if (loss) {
      const who = worker === null ? "another worker" : shortName(worker.startsWith("worker") ? worker : `worker ${worker}`);
      this._end(loss, at, "over", `${loss.words} After ${lasting(at - loss.from)} ${who} went on.`, seq);
    }
    this._end(due, at, "over", "", seq);
    this._open.loss = this._open.due = null;
  }

  _ask(/** @type {number} */ at, /** @type {number} */ seq) {
    this._asking = true;
    if (this._open.attempt?.until === null) return;
    this._open.attempt = this._begin("attempt", at, { name: "model", words: "The model is asked.", seqs: [seq] });
  }

  _delta(/** @type {any} */ delta) {
    this._sign(delta.at);
    const attempt = this._open.attempt;
    if (attempt?.until === null && attempt.streams_at === null) {
      attempt.streams_at = delta.at;
      attempt.words = `The model began to answer after ${lasting(delta.at - attempt.from)}.`;
    }
  }

  // --- what entries mean ---------------------------------------------------------------------------------------------

  _startTurn(/** @type {Entry} */ entry) {
    if (this._hold === null) this._take(entry.at, null);
    this._open.turn = this._begin("turn", entry.at, { name: `turn ${entry.turn}`, words: `Turn ${entry.turn} goes on.`, seqs: [entry.seq, entry.seq] });
    this._ask(entry.at, entry.seq);
  }

  _endTurn(/** @type {Entry} */ entry) {
    const { turn, attempt, retry, stop, loss, due } = this._open;
    const state = entry.state === "failed" ? "failed" : entry.cause ? "stopped" : "done";
    for (const span of [attempt, retry]) this._end(span, entry.at, "stopped", "", entry.seq);
    for (const span of [stop, due]) this._end(span, entry.at, "over", "", entry.seq);
    this._end(loss, entry.at, "over", `${loss?.words} Nobody had to go on.`, entry.seq);
    for (const call of this._calls.values()) {
      for (const span of [call.run, call.wait]) this._end(span, entry.at, "cancelled", "", entry.seq);
    }
    const how = state === "done" ? "was answered" : state === "failed" ? "failed" : `was cut short (${entry.cause})`;
    const took = turn ? ` after ${lasting(entry.at - turn.from)}` : "";
    this._end(turn, entry.at, state, `Turn ${entry.turn} ${how}${took}.`);
    this._open = {};
    this._calls.clear();
    this._asking = false;
    if (entry.state !== "running") this._rest(entry.at);
  }

  _rest(/** @type {number} */ at) {
    if (this._hold) this._hold.until = at;
    this._hold = null;
  }

  /** The worker is gone. What it did last is known; what it was doing then is not. */
  _lose(/** @type {Entry} */ entry, /** @type {string | null} */ worker) {
    const hold = this._hold;
    const clean = entry.cause === "shutdown";
    const last = Math.max(hold?.last ?? 0, entry.heard_at ?? 0) || entry.at;
    const from = clean ? entry.at : Math.min(last, entry.at);
    for (const span of [this._open.attempt, this._open.retry]) this._end(span, from, "lost", "Lost with its worker: the model is asked again.", entry.seq);
    for (const [id, call] of this._calls) {
      if ((entry.never_begun ?? []).includes(id)) {
        this._end(call.run, from, "over", `${call.name} had not begun: the next worker starts it.`, entry.seq);
        call.run = null;
      }
      this._end(call.run, from, "lost", `${call.name} was running when its worker was lost.`, entry.seq);
      call.lost = call.run ?? call.lost;
      call.run = null;
    }
    const who = worker === null ? "The worker" : shortName(worker.startsWith("worker") ? worker : `worker ${worker}`).replace(/^w/, "W");
    const found = clean || entry.at - from < 1 ? "" : ` It was missed ${lasting(entry.at - from)} after its last sign.`;
    const words = `${who} ${CAUSES[entry.cause] ?? `left the chat (${entry.cause})`}.${found}`;
    this._open.loss = this._begin(clean ? "handover" : "gap", from, { name: worker ?? "", words, seqs: [entry.seq] });
    if (hold) Object.assign(hold, { until: from, cause: entry.cause, worker: worker ?? hold.worker });
    this._hold = null;
  }

  _takeOver(/** @type {Entry} */ entry) {
    this._rest(entry.at);
    this._take(entry.at, entry.worker);
    this._found(entry.at, entry.worker, entry.seq);
    if (this._asking) this._ask(entry.at, entry.seq);
  }

  _message(/** @type {Entry} */ entry) {
    const { message } = entry;
    if (entry.attempt != null) return this._respond(entry);
    if (message.role === "tool") return this._result(entry);
    const text = message.parts.map((/** @type {any} */ part) => part.text ?? `[${part.kind}]`).join(" ");
    this._mark(entry, `${message.role}: ${text.slice(0, 200)}`);
    if (this._asking && this._hold) this._ask(entry.at, entry.seq);
  }

  _respond(/** @type {Entry} */ entry) {
    const { message } = entry;
    this._sign(entry.at);
    const attempt = this._open.attempt;
    const calls = message.parts.filter((/** @type {any} */ part) => part.kind === "tool_call");
    const names = calls.map((/** @type {any} */ part) => part.name).join(", ");
    const took = attempt ? ` after ${lasting(entry.at - attempt.from)}` : "";
    const words = `${message.model ?? "The model"} answered${took}${names ? ` and asked for ${names}` : ""}.`;
    if (attempt && message.model) attempt.name = message.model;
    this._end(attempt, entry.at, message.stopped ? "stopped" : "answered", words, entry.seq);
    for (const part of calls) {
      this._calls.set(part.call_id, { name: part.name, run: null, wait: null, lost: null });
      if ((entry.started ?? []).includes(part.call_id)) this._run(part.call_id, entry);
    }
    this._asking = calls.length === 0;
  }

  _run(/** @type {string} */ id, /** @type {Entry} */ entry) {
    const call = this._calls.get(id) ?? { name: "a call", run: null, wait: null, lost: null };
    this._calls.set(id, call);
    this._end(call.wait, entry.at, "over", "", entry.seq);
    call.run = this._begin("call", entry.at, { name: call.name, words: `${call.name} runs${call.lost ? " again" : ""}.`, call_id: id, seqs: [entry.seq] });
  }

  _result(/** @type {Entry} */ entry) {
    for (const part of entry.message.parts) {
      const call = this._calls.get(part.call_id);
      if (!call) continue;
      const state = entry.call_state === "done" || entry.call_state == null ? (part.error ? "failed" : "done") : entry.call_state;
      if (call.run) this._sign(entry.at);
      const took = call.run ? ` after ${lasting(entry.at - call.run.from)}` : "";
      this._end(call.run, entry.at, state, `${call.name}: ${OUTCOMES[state] ?? state}${took}.`, entry.seq);
      this._end(call.wait, entry.at, state === "done" ? "over" : state, "", entry.seq);
      if (!call.run && call.lost && state === "unknown") {
        Object.assign(call.lost, { state, words: `${call.name} was running when its worker was lost: outcome unknown, so it was not run again.` });
        call.lost.seqs.push(entry.seq);
      } else if (!call.run && !call.wait) this._mark(entry, `${call.name}: ${OUTCOMES[state] ?? state}.`, state);
      this._calls.delete(part.call_id);
    }
    if (this._calls.size) return;
    this._asking = true;
    if (this._hold) this._ask(entry.at, entry.seq);
  }

  _change(/** @type {Entry} */ entry) {
    const call = this._calls.get(entry.call_id) ?? { name: entry.name, run: null, wait: null, lost: null };
    this._calls.set(entry.call_id, call);
    this._end(call.wait, entry.at, "over", entry.by ? `${call.wait?.words} ${entry.by} answered.` : "", entry.seq);
    if (entry.state === "asking" || entry.state === "external") {
      this._end(call.run, entry.at, "over", "", entry.seq);
      const external = /** @type {keyof typeof EXTERNAL} */ (entry.external);
      const kind = entry.state === "asking" ? "approval" : external;
      const words = kind === "approval" ? `${call.name} waits for a person to approve or deny.` : `${call.name} waits for ${EXTERNAL[external] ?? external}.`;
      call.wait = this._begin(kind, entry.at, { name: call.name, words, call_id: entry.call_id, child_id: entry.child_id ?? null, seqs: [entry.seq] });
    } else if (entry.detail) this._mark(entry, `${call.name}: ${entry.detail}`);
  }

  _failAttempt(/** @type {Entry} */ entry) {
    this._sign(entry.at);
    this._end(this._open.attempt, entry.at, "failed", `${entry.model} failed: ${entry.code}: ${entry.error}`, entry.seq);
    if (entry.retry_in_ms == null) return;
    const words = `A pause of ${lasting(entry.retry_in_ms)} before ${entry.next_model ?? "the model"} is asked again.`;
    const next = entry.at + entry.retry_in_ms;
    if (entry.retry_in_ms) this._open.retry = this._begin("retry", entry.at, { name: "pause", words, until: next, state: "over", seqs: [entry.seq] });
    this._ask(next, entry.seq);
  }

  _compact(/** @type {Entry} */ entry) {
    this._sign(entry.at);
    const attempt = this._open.attempt;
    const words = entry.kind === "compacted" ? "Older messages were put into a summary." : `No summary could be made: ${entry.error}`;
    this._mark(entry, words);
    if (attempt?.until !== null || attempt.streams_at !== null) return;
    this._begin("compaction", attempt.from, { name: "summary", words, until: entry.at, state: entry.kind === "compacted" ? "done" : "failed", seqs: [entry.seq] });
    attempt.from = entry.at;
  }

  _note(/** @type {Entry} */ entry) {
    const run = entry.call_id ? this._calls.get(entry.call_id)?.run : null;
    if (run) {
      run.seqs.push(entry.seq);
      this._sign(entry.at);
    } else this._mark(entry, `${entry.topic ?? entry.name}: ${(entry.text ?? "").slice(0, 200)}`);
  }

  _park(/** @type {Entry} */ entry) {
    for (const id of entry.call_ids ?? []) this._calls.get(id)?.wait?.seqs.push(entry.seq);
    this._rest(entry.at);
  }

  _resume(/** @type {Entry} */ entry) {
    this._open.due = this._begin("due", entry.at, { name: "a worker", words: "It waits for a worker that has room.", seqs: [entry.seq] });
  }

  _retryTurn(/** @type {Entry} */ entry) {
    this._take(entry.at, null);
    this._open.turn = this._begin("turn", entry.at, { name: "again", words: "The failed turn goes on.", seqs: [entry.seq, entry.seq] });
    this._ask(entry.at, entry.seq);
  }
}

/** @type {Record<string, string>} */
export const OUTCOMES = {
  done: "done", failed: "failed, and the model was told so", denied: "denied", cancelled: "cancelled",
  unknown: "outcome unknown: it was not run again", lost: "lost with its worker",
};

/** @type {Record<string, (model: TimelineModel, entry: Entry) => void>} */
const TAKE = {
  "turn.started": (model, entry) => model._startTurn(entry),
  "turn.ended": (model, entry) => model._endTurn(entry),
  "turn.waiting": (model, entry) => model._park(entry),
  "turn.resumed": (model, entry) => model._resume(entry),
  "chat.handed_over": (model, entry) => model._lose(entry, entry.worker),
  "chat.taken_over": (model, entry) => model._takeOver(entry),
  "chat.retried": (model, entry) => model._retryTurn(entry),
  "preview.reset": (model, entry) => {
    if (entry.cause != null && !model._open.loss) model._lose(entry, null); // as older versions tell it
    else if (entry.cause != null) model._open.loss?.seqs.push(entry.seq);
  },
  message: (model, entry) => model._message(entry),
  "calls.started": (model, entry) => {
    model._sign(entry.at);
    for (const id of entry.call_ids) model._run(id, entry);
  },
  "call.changed": (model, entry) => model._change(entry),
  "attempt.failed": (model, entry) => model._failAttempt(entry),
  compacted: (model, entry) => model._compact(entry),
  "compaction.failed": (model, entry) => model._compact(entry),
  note: (model, entry) => model._note(entry),
  trace: (model, entry) => model._note(entry),
  "stop.requested": (model, entry) => {
    model._open.stop = model._begin("stop", entry.at, { name: "stop", words: `A stop was asked for (${entry.cause}): what runs is ended.`, seqs: [entry.seq] });
  },
  "history.cut": (model, entry) => model._mark(entry, `The history was cut at position ${entry.length}: a message was edited.`),
  "message.queued": (model, entry) => model._mark(entry, `A message was queued (${entry.mode}).`),
  "message.promoted": (model, entry) => model._mark(entry, "A queued message was put first."),
  "message.dropped": (model, entry) => model._mark(entry, `${entry.message_ids.length} queued messages were dropped (${entry.why}).`),
  "chat.failed": (model, entry) => model._mark(entry, `The chat failed: ${entry.error.code}: ${entry.error.message}`),
  "chat.created": (model, entry) => model._mark(entry, entry.forked_from ? `A fork of ${entry.forked_from}.` : `A chat with ${entry.agent}.`),
  "chat.repaired": (model, entry) => model._mark(entry, `A sweep repaired it: ${entry.reason}.`),
  "chat.renamed": (model, entry) => model._mark(entry, `Renamed: ${entry.title}`),
  "chat.archived": (model, entry) => model._mark(entry, entry.archived ? "Put away." : "Taken out again."),
};
