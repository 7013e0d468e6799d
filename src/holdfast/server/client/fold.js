/**
 * The fold from a chat's journal to what a reader shows: events in, updates out. The same as `core/fold.py`, update for
 * update and cursor for cursor; a test drives both with the same journals. What was shown of a response stays as far as a
 * new attempt, or the committed message, begins with it; the rest is taken back. `settled` looks at no delta.
 */

import { NOTHING_HEARD, ShownWords } from "./shown_words.js";
import { NO_MARK, cursorOf } from "./update_cursor.js";
import { TurnView, callKey, newCall, withFields } from "./updates.js";

/** @typedef {import("./updates.js").ChatEvent} ChatEvent */
/** @typedef {import("./updates.js").Entry} Entry */
/** @typedef {import("./updates.js").CallView} CallView */
/** @typedef {import("./updates.js").Message} Message */
/** @typedef {import("./updates.js").Update} Update */
/** @typedef {import("./shown_words.js").Heard} Heard */
/** @typedef {import("./update_cursor.js").Mark} Mark */
/** @template {Entry["kind"]} K @typedef {Extract<Entry, { kind: K }>} Of */
/** @typedef {{ kind: Update["kind"], turn: TurnView, mark: Mark, fields: object }} Pending */

const OF_TEXT = new Set(["TextAdded", "ReasoningAdded", "Restarted"]);
const ROLES = new Set(["system", "user", "assistant", "tool"]);
const PARTS = new Set(["text", "reasoning", "file", "tool_call", "tool_result", "expansion"]);

/** Takes the events of one chat in order. Holds a turn, never more. */
export class Fold {
  constructor({ settled = false, place = "" } = {}) {
    this._settled = settled;
    this._place = place; // the server's cursor just before the next event
    this._turnSeq = 0;
    this._attempt = 0; // whose deltas came last
    /** @type {Set<string>} */
    this._drafted = new Set();
    /** @type {[number, number]} as in a mark */
    this._drafts = [0, 0];
    this._text = new ShownWords();
    this._reasoning = new ShownWords();
    this._answerFrom = 0; // the index in the text where the last committed response begins
    this._responseOver = false; // with the present event
    /** @type {Pending[]} */
    this._pending = [];
    this._told = 0; // updates of the present event, those of text not counted
    this._skipped = 0; // that were told before, of the next entry
    this.turn = new TurnView();
  }

  /**
   * After the turn's entries up to that place were taken: goes on as if it had told everything up to there. What is
   * streamed is to be taken from its beginning.
   */
  resume(/** @type {Mark | null} */ mark, /** @type {string} */ place) {
    const { text, reasoning, told, drafts } = mark ?? NO_MARK;
    this._text.resume(text);
    this._reasoning.resume(reasoning);
    this._skipped = told;
    this._drafts = drafts;
    this._place = place;
  }

  /** A person or a client has to act before anything happens. */
  get paused() {
    return this.turn.state === "waiting" && this.turn.open.length > 0;
  }

  /** `cursor` is the event's id. @returns {Update[]} */
  take(/** @type {ChatEvent} */ event, /** @type {string} */ cursor) {
    this._told = 0;
    if (event.kind === "delta") {
      if (!this._settled) this._delta(event);
    } else {
      if (Object.hasOwn(ENTRIES, event.kind)) {
        /** @type {(fold: Fold, entry: any) => void} */ (ENTRIES[event.kind])(this, event);
      } // else newer code wrote it
      this._skipped = 0;
    }
    return this._finish(cursor);
  }

  /**
   * Only after its last update is a reader past the event. Before, it is at the one before, with more shown: what the
   * event has committed is not committed there.
   */
  _finish(/** @type {string} */ cursor) {
    if (this._responseOver) {
      this._responseOver = false;
      this._text.end();
      this._reasoning.end();
    }
    const pending = this._pending;
    const before = this._place;
    this._pending = [];
    this._place = cursor;
    const past = pending.length ? this._mark(0) : NO_MARK;
    return pending.map(({ kind, turn, mark, fields }, n) => {
      const last = n === pending.length - 1;
      return /** @type {Update} */ ({
        kind,
        turn,
        ...fields,
        get cursor() {
          return last ? cursorOf(cursor, past) : cursorOf(before, mark);
        },
      });
    });
  }

  _tell(/** @type {Update["kind"]} */ kind, /** @type {object} */ fields = {}) {
    if (!OF_TEXT.has(kind)) {
      this._told += 1;
      if (this._told <= this._skipped) return;
    }
    this._pending.push({ kind, turn: this.turn, mark: this._mark(this._told), fields });
  }

  /** @returns {Mark} */
  _mark(/** @type {number} */ told) {
    const [text, reasoning] = [this._text.shown, this._reasoning.shown];
    return { turn: this._turnSeq, told, text, reasoning, drafts: this._drafts };
  }

  _set(/** @type {Partial<TurnView>} */ fields) {
    this.turn = this.turn.with(fields);
  }

  // --- text -----------------------------------------------------------------------------------------

  _delta(/** @type {Extract<ChatEvent, { kind: "delta" }>} */ delta) {
    if (delta.attempt !== this._attempt) {
      this._attempt = delta.attempt;
      this._drafted.clear();
      this._text.beginAttempt();
      this._reasoning.beginAttempt();
    }
    if (delta.part === "text") this._tellWords(this._text.hear(delta.text), NOTHING_HEARD);
    else if (delta.part === "reasoning") this._tellWords(NOTHING_HEARD, this._reasoning.hear(delta.text));
    else if (delta.part === "arguments" && delta.call_id != null && !this._drafted.has(delta.call_id)) {
      this._drafted.add(delta.call_id);
      const count = this._drafted.size;
      const [attempt, told] = this._drafts;
      if (delta.attempt > attempt || (delta.attempt === attempt && count > told)) {
        this._drafts = [delta.attempt, count]; // else it was told before, elsewhere
        this._tell("CallDrafted", { call: newCall(delta.call_id, delta.name ?? "") });
      }
    }
  }

  _tellWords(/** @type {Heard} */ text, /** @type {Heard} */ reasoning) {
    const dropped = text.dropped || reasoning.dropped;
    if (dropped || text.met || reasoning.met) this._showWords();
    if (dropped) this._tell("Restarted", { dropped: text.dropped, reasoning_dropped: reasoning.dropped });
    if (reasoning.rest) {
      this._reasoning.add(reasoning.rest);
      this._showWords();
      this._tell("ReasoningAdded", { text: reasoning.rest });
    }
    if (text.rest) {
      this._text.add(text.rest);
      this._showWords();
      this._tell("TextAdded", { text: text.rest });
    }
  }

  _showWords(answerFrom = this._text.committed) {
    const text = this._text.all;
    this._set({ text, answer: text.slice(answerFrom), reasoning: this._reasoning.all });
  }

  /** This is what it came to: nothing, where it was not kept. */
  _endResponse(text = "", reasoning = "") {
    this._tellWords(this._text.hearAll(text), this._reasoning.hearAll(reasoning));
    this._responseOver = true;
    // Where another process had shown all of it, nothing is told, and it is known only now.
    this._showWords(this._answerFrom);
    this._set({ retries: 0 });
  }

  // --- entries --------------------------------------------------------------------------------------

  /** Told as it is. */
  _happen(/** @type {Entry} */ entry) {
    this._tell("Happened", { entry });
  }

  _startTurn(/** @type {Of<"turn.started">} */ entry) {
    this._endResponse();
    this._turnSeq = entry.seq;
    this._text = new ShownWords();
    this._reasoning = new ShownWords();
    this._answerFrom = 0;
    this.turn = new TurnView().with({ number: entry.turn, state: "running" });
    this._happen(entry);
  }

  /** What was shown and not committed by now never will be. */
  _endTurn(/** @type {Of<"turn.ended">} */ entry) {
    this._endResponse();
    const failed = entry.state === "failed";
    const cause = entry.cause ?? null;
    const state = failed ? "failed" : cause !== null ? "stopped" : "done";
    this._set({ number: entry.turn, state, cause, detail: entry.detail ?? null });
    if (entry.tokens != null && entry.cost != null) { // older code did not say
      this._set({ usage: { ...this.turn.usage, total_tokens: entry.tokens }, cost: entry.cost });
    }
    if (!failed) this._tell("Finished"); // else the next entry says why
  }

  _wait(/** @type {Of<"turn.waiting">} */ entry) {
    this._set({ state: "waiting" });
    const open = this.turn.open;
    if (open.length) this._tell("Paused", { open });
    else this._happen(entry); // for a sub-agent, or the clock
  }

  _loseAttempt(/** @type {Of<"attempt.failed">} */ entry) {
    this._take(entry.tokens);
    if (entry.retry_in_ms == null) this._happen(entry);
    else this._retry(entry.error, entry.at + entry.retry_in_ms, entry.next_model ?? null);
  }

  _retry(/** @type {string} */ reason, /** @type {number} */ at, /** @type {string | null} */ model) {
    this._set({ retries: this.turn.retries + 1 });
    this._tell("Retrying", { reason, at, attempt: this.turn.retries + 1, model });
  }

  /** It took so many tokens more than its responses. What they cost is known by its end, and added to that afterwards. */
  _take(/** @type {number | undefined} */ tokens, cost = 0) {
    const usage = { ...this.turn.usage, total_tokens: this.turn.usage.total_tokens + (tokens ?? 0) };
    this._set({ usage, cost: this.turn.cost === null ? null : this.turn.cost + cost });
  }

  _message(/** @type {Of<"message">} */ entry) {
    const message = entry.message;
    if (!ROLES.has(message.role) || !message.parts.every((part) => PARTS.has(part.kind))) return; // newer code wrote it
    if (entry.attempt != null) this._respond(entry, message);
    else if (message.role === "tool") {
      for (const part of message.parts) {
        if (part.kind === "tool_result") this._endCall(part, entry.call_state ?? "done", entry.at);
      }
    } else this._happen(entry);
  }

  _respond(/** @type {Of<"message">} */ entry, /** @type {Message} */ message) {
    this._answerFrom = this._text.committed;
    let text = "";
    let thought = "";
    for (const part of message.parts) {
      if (part.kind === "text") text += part.text;
      if (part.kind === "reasoning") thought += part.text ?? "";
    }
    this._endResponse(text, thought);
    for (const part of message.parts) {
      if (part.kind === "tool_call") this._keep(newCall(part.call_id, part.name, { arguments: part.arguments ?? "" }));
    }
    this._addResponse(message);
    this._tell("Responded", { message });
    for (const callId of entry.started ?? []) this._beginCall(callId, entry.at);
  }

  _addResponse(/** @type {Message} */ response) {
    const [asked, said] = [response.input_tokens ?? 0, response.output_tokens ?? 0];
    const { responses, input_tokens, output_tokens, total_tokens } = this.turn.usage;
    this._set({
      response,
      usage: {
        responses: responses + 1,
        input_tokens: input_tokens + asked,
        output_tokens: output_tokens + said,
        total_tokens: total_tokens + (asked + said || (response.estimated_tokens ?? 0)),
      },
    });
  }

  // --- calls ----------------------------------------------------------------------------------------

  /** One that the fold has not heard of was asked for before its first event. */
  _call(/** @type {string} */ callId, name = "", /** @type {string | null} */ chatId = null) {
    return this.turn._calls.get(callKey(chatId, callId)) ?? newCall(callId, name);
  }

  _keep(/** @type {CallView} */ call) {
    this._set({ _calls: new Map(this.turn._calls).set(callKey(call.chat_id, call.id), call) });
    return call;
  }

  _beginCall(/** @type {string} */ callId, /** @type {number} */ at, /** @type {string | undefined} */ given = undefined) {
    const call = this._call(callId);
    const begun = withFields(call, { state: "started", arguments: given ?? call.arguments, began_at: at });
    this._tell("CallBegan", { call: this._keep(begun) });
  }

  _changeCall(/** @type {Of<"call.changed">} */ entry) {
    let call = withFields(this._call(entry.call_id, entry.name), {
      state: entry.state,
      external: entry.external ?? null,
      question: entry.question ?? null,
      child_id: entry.child_id ?? null,
      by: entry.by ?? null,
    });
    if (entry.arguments != null) call = withFields(call, { arguments: entry.arguments });
    if (call.kind !== null) this._tell("CallAsked", { call: this._keep(call) });
    else if (call.state === "external") {
      this._tell("CallBegan", { call: this._keep(withFields(call, { began_at: entry.at })) });
    } else if (call.state === "approved") this._tell("CallAnswered", { call: this._keep(call) });
    else {
      this._keep(withFields(call, { began_at: null })); // it is to run again
      this._happen(entry);
    }
  }

  _endCall(
    /** @type {Extract<Message["parts"][number], { kind: "tool_result" }>} */ result,
    /** @type {CallView["state"]} */ state,
    /** @type {number} */ at,
  ) {
    const call = withFields(this._call(result.call_id, result.name), {
      state, ended_at: at, result: result.content ?? "", error: result.error ?? false, files: result.files ?? [],
    });
    this._tell("CallDone", { call: this._keep(call) });
  }

  /** A call of a sub-agent. Its result is told in its own chat. */
  _descendantAsks(/** @type {Of<"descendant.asking">} */ entry) {
    const call = newCall(entry.call_id, entry.name, {
      arguments: entry.arguments ?? "",
      state: entry.state,
      chat_id: entry.chat_id,
      external: entry.external ?? null,
      question: entry.question ?? null,
      expires_at: entry.expires_at ?? null,
    });
    this._tell("CallAsked", { call: this._keep(call) });
    if (this.turn.state === "waiting") this._tell("Paused", { open: this.turn.open });
  }

  _descendantAnswered(/** @type {Of<"descendant.answered">} */ entry) {
    const call = this._call(entry.call_id, entry.name, entry.chat_id);
    const answered = withFields(call, { chat_id: entry.chat_id, state: entry.state, by: entry.by ?? null });
    this._tell("CallAnswered", { call: this._keep(answered) });
  }

  _note(/** @type {Of<"note">} */ entry) {
    if (entry.topic !== "progress" || entry.call_id == null) {
      this._take(entry.tokens, entry.cost); // what a call spent
      return this._happen(entry);
    }
    const text = entry.text ?? "";
    const call = this._call(entry.call_id);
    this._tell("CallProgress", { call: this._keep(withFields(call, { progress: call.progress + text })), text });
  }

  /** A history that is cut: what the turn had said is not said any more. */
  _cut(/** @type {Of<"history.cut">} */ entry) {
    if (!this.turn.over) {
      this._answerFrom = this._text.committed;
      this._set({ response: null, answer: this._text.all.slice(this._answerFrom) });
    }
    this._happen(entry);
  }
}

/** What each kind of entry does. A kind that the description has and this table has not is an error of types. */
/** @type {{ [K in Entry["kind"]]: (fold: Fold, entry: Of<K>) => void }} */
const ENTRIES = {
  message: (fold, entry) => fold._message(entry),
  "turn.started": (fold, entry) => fold._startTurn(entry),
  "turn.ended": (fold, entry) => fold._endTurn(entry),
  "chat.failed": (fold, entry) => {
    if (fold.turn.state !== "failed") return fold._happen(entry); // a compaction at rest did
    fold._set({ error: entry.error });
    fold._tell("Finished");
  },
  "turn.waiting": (fold, entry) => fold._wait(entry),
  "attempt.failed": (fold, entry) => fold._loseAttempt(entry),
  // What is shown stays until something else is said. Only a handover is news: a failed attempt was told.
  "preview.reset": (fold, entry) => {
    if (entry.cause != null) fold._retry(entry.cause, entry.at, null);
  },
  "calls.started": (fold, entry) => {
    for (const callId of entry.call_ids) fold._beginCall(callId, entry.at, entry.arguments?.[callId]);
  },
  "call.changed": (fold, entry) => fold._changeCall(entry),
  note: (fold, entry) => fold._note(entry),
  "descendant.asking": (fold, entry) => fold._descendantAsks(entry),
  "descendant.answered": (fold, entry) => fold._descendantAnswered(entry),
  "stop.requested": (fold, entry) => {
    if (!fold.turn.over) fold._set({ state: "stopping", cause: entry.cause }); // else of a compaction at rest
    fold._happen(entry);
  },
  "turn.resumed": (fold, entry) => {
    fold._set({ state: "running" });
    fold._happen(entry);
  },
  "chat.retried": (fold, entry) => {
    fold._set({ state: "running", cause: null, detail: null, error: null });
    fold._happen(entry);
  },
  "history.cut": (fold, entry) => fold._cut(entry),
  compacted: (fold, entry) => {
    if (!fold.turn.over) fold._take(entry.tokens); // one of a chat at rest is none of the turn's
    fold._happen(entry);
  },
  "compaction.failed": (fold, entry) => {
    if (!fold.turn.over) fold._take(entry.tokens);
    fold._happen(entry);
  },
  "chat.renamed": (fold, entry) => {
    fold._take(entry.tokens, entry.cost);
    fold._happen(entry);
  },
  "chat.created": (fold, entry) => fold._happen(entry),
  "chat.agent": (fold, entry) => fold._happen(entry),
  "message.queued": (fold, entry) => fold._happen(entry),
  "message.promoted": (fold, entry) => fold._happen(entry),
  "message.dropped": (fold, entry) => fold._happen(entry),
  "chat.archived": (fold, entry) => fold._happen(entry),
  "chat.repaired": (fold, entry) => fold._happen(entry),
  "chat.handed_over": (fold, entry) => fold._happen(entry),
  "chat.taken_over": (fold, entry) => fold._happen(entry),
};
