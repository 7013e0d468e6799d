/**
 * What a reader of a chat is told: updates, and the turn so far as a value. The same as `core/updates.py`; `fold.js` makes
 * them of the journal. A page that shows `update.turn.text` shows exactly what the model said, at every moment; one that
 * keeps a text of its own adds `TextAdded.text` and takes back what `Restarted` says.
 */

/** @typedef {import("./api.js").components["schemas"]} Schemas */
/** @typedef {Schemas["ChatEvent"]} ChatEvent */
/** @typedef {Exclude<ChatEvent, { kind: "delta" }>} Entry */
/** @typedef {Schemas["Message"]} Message */
/** @typedef {Schemas["CallState"]} CallState */
/** @typedef {"running" | "stopping" | "waiting" | "done" | "stopped" | "failed"} TurnState */
/** @typedef {"approval" | "question" | "client"} AskedKind */

/**
 * A call, as far as the journal tells of it.
 * @typedef {object} CallView
 * @property {string} id
 * @property {string} name
 * @property {string} arguments those that run, where the journal tells them
 * @property {CallState} state
 * @property {string | null} chat_id set for a call of a sub-agent: where it is answered
 * @property {Schemas["External"] | null} external
 * @property {string | null} question
 * @property {string | null} child_id
 * @property {number | null} expires_at of a sub-agent's call
 * @property {string | null} by who answered it
 * @property {number | null} began_at
 * @property {number | null} ended_at
 * @property {string | null} result
 * @property {boolean} error
 * @property {readonly Schemas["File"][]} files of the result
 * @property {string} progress what its tool said while it ran
 * @property {AskedKind | null} kind what a person or a client is asked for; null: neither is asked
 */

/** @typedef {{ responses: number, input_tokens: number, output_tokens: number, total_tokens: number }} TurnUsage */

/**
 * @typedef {object} Told
 * @property {TurnView} turn as it is after this update
 * @property {string} cursor the place to go on from
 */
/** @typedef {Told & { kind: "TextAdded", text: string }} TextAdded */
/** @typedef {Told & { kind: "ReasoningAdded", text: string }} ReasoningAdded */
/** @typedef {Told & { kind: "Restarted", dropped: number, reasoning_dropped: number }} Restarted */
/** @typedef {Told & { kind: "Responded", message: Message }} Responded */
/** @typedef {Told & { kind: "CallDrafted", call: CallView }} CallDrafted */
/** @typedef {Told & { kind: "CallBegan", call: CallView }} CallBegan */
/** @typedef {Told & { kind: "CallProgress", call: CallView, text: string }} CallProgress */
/** @typedef {Told & { kind: "CallAsked", call: CallView }} CallAsked */
/** @typedef {Told & { kind: "CallAnswered", call: CallView }} CallAnswered */
/** @typedef {Told & { kind: "CallDone", call: CallView }} CallDone */
/** @typedef {Told & { kind: "Retrying", reason: string, at: number, attempt: number, model: string | null }} Retrying */
/** @typedef {Told & { kind: "Paused", open: CallView[] }} Paused */
/** @typedef {Told & { kind: "Finished" }} Finished */
/** @typedef {Told & { kind: "Happened", entry: Entry }} Happened */
/**
 * What the model says as sanitised HTML, for a page: the block `block` of a response that is streamed, or a whole committed
 * message (`message_id`). Only readers that ask for it are told.
 * @typedef {Told & { kind: "Rendered", attempt: number, block: number | null, message_id: string | null, html: string }} Rendered
 */
/**
 * @typedef {TextAdded | ReasoningAdded | Restarted | Responded | CallDrafted | CallBegan | CallProgress | CallAsked
 *   | CallAnswered | CallDone | Retrying | Paused | Finished | Happened | Rendered} Update
 */

/** One that nothing is known of but what is given: it is planned. @returns {CallView} */
export function newCall(/** @type {string} */ id, /** @type {string} */ name, /** @type {Partial<CallView>} */ fields = {}) {
  return withKind({
    id, name, arguments: "", state: "planned", chat_id: null, external: null, question: null, child_id: null,
    expires_at: null, by: null, began_at: null, ended_at: null, result: null, error: false, files: [], progress: "", kind: null,
    ...fields,
  });
}

/** The same call with some fields changed. @returns {CallView} */
export function withFields(/** @type {CallView} */ call, /** @type {Partial<CallView>} */ fields) {
  return withKind({ ...call, ...fields });
}

/** @returns {CallView} */
function withKind(/** @type {CallView} */ call) {
  call.kind = null;
  if (call.state === "asking") call.kind = "approval";
  if (call.state === "external" && call.external === "question") call.kind = "question";
  if (call.state === "external" && call.external === "client") call.kind = "client";
  return call;
}

export function callKey(/** @type {string | null} */ chatId, /** @type {string} */ callId) {
  return chatId === null ? callId : `${chatId}\n${callId}`;
}

/** @type {TurnUsage} */
export const NO_USAGE = { responses: 0, input_tokens: 0, output_tokens: 0, total_tokens: 0 };

/** A turn as its journal tells it so far. */
export class TurnView {
  constructor() {
    this.number = 0; // 0: no turn has begun
    /** @type {TurnState} */
    this.state = "done";
    /** @type {Schemas["Cause"] | null} why it was cut short */
    this.cause = null;
    /** @type {string | null} */
    this.detail = null;
    /** @type {Schemas["Failure"] | null} */
    this.error = null;
    this.retries = 0; // of the response that is being asked for
    this.usage = NO_USAGE;
    /** @type {number | null} null: it has not ended */
    this.cost = null;
    /** @type {Message | null} the last one that was committed and stands */
    this.response = null;
    this.text = ""; // all that the model said in this turn
    this.answer = ""; // what it says in its last response
    this.reasoning = "";
    /** @type {ReadonlyMap<string, CallView>} */
    this._calls = new Map();
  }

  /** The same turn with some fields changed. @returns {TurnView} */
  with(/** @type {Partial<TurnView>} */ fields) {
    return Object.assign(Object.create(TurnView.prototype), this, fields);
  }

  /** It has ended. A retry opens a failed one again. */
  get over() {
    return this.state === "done" || this.state === "stopped" || this.state === "failed";
  }

  /** All of the turn, in the order in which the model asked for them. */
  get calls() {
    return [...this._calls.values()].filter((call) => call.chat_id === null);
  }

  /** What a person or a client has to answer, in this chat and in those of its sub-agents. */
  get open() {
    return [...this._calls.values()].filter((call) => call.kind !== null);
  }
}
