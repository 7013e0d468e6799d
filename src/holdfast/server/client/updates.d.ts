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
export function newCall(id: string, name: string, fields?: Partial<CallView>): CallView;
/** The same call with some fields changed. @returns {CallView} */
export function withFields(call: CallView, fields: Partial<CallView>): CallView;
export function callKey(chatId: string | null, callId: string): string;
/** @type {TurnUsage} */
export const NO_USAGE: TurnUsage;
/** A turn as its journal tells it so far. */
export class TurnView {
    number: number;
    /** @type {TurnState} */
    state: TurnState;
    /** @type {Schemas["Cause"] | null} why it was cut short */
    cause: Schemas["Cause"] | null;
    /** @type {string | null} */
    detail: string | null;
    /** @type {Schemas["Failure"] | null} */
    error: Schemas["Failure"] | null;
    retries: number;
    usage: TurnUsage;
    /** @type {number | null} null: it has not ended */
    cost: number | null;
    /** @type {Message | null} the last one that was committed and stands */
    response: Message | null;
    text: string;
    answer: string;
    reasoning: string;
    /** @type {ReadonlyMap<string, CallView>} */
    _calls: ReadonlyMap<string, CallView>;
    /** The same turn with some fields changed. @returns {TurnView} */
    with(fields: Partial<TurnView>): TurnView;
    /** It has ended. A retry opens a failed one again. */
    get over(): boolean;
    /** All of the turn, in the order in which the model asked for them. */
    get calls(): CallView[];
    /** What a person or a client has to answer, in this chat and in those of its sub-agents. */
    get open(): CallView[];
}
export type Schemas = import("./api.js").components["schemas"];
export type ChatEvent = Schemas["ChatEvent"];
export type Entry = Exclude<ChatEvent, {
    kind: "delta";
}>;
export type Message = Schemas["Message"];
export type CallState = Schemas["CallState"];
export type TurnState = "running" | "stopping" | "waiting" | "done" | "stopped" | "failed";
export type AskedKind = "approval" | "question" | "client";
/**
 * A call, as far as the journal tells of it.
 */
export type CallView = {
    id: string;
    name: string;
    /**
     * those that run, where the journal tells them
     */
    arguments: string;
    state: CallState;
    /**
     * set for a call of a sub-agent: where it is answered
     */
    chat_id: string | null;
    external: Schemas["External"] | null;
    question: string | null;
    child_id: string | null;
    /**
     * of a sub-agent's call
     */
    expires_at: number | null;
    /**
     * who answered it
     */
    by: string | null;
    began_at: number | null;
    ended_at: number | null;
    result: string | null;
    error: boolean;
    /**
     * of the result
     */
    files: readonly Schemas["File"][];
    /**
     * what its tool said while it ran
     */
    progress: string;
    /**
     * what a person or a client is asked for; null: neither is asked
     */
    kind: AskedKind | null;
};
export type TurnUsage = {
    responses: number;
    input_tokens: number;
    output_tokens: number;
    total_tokens: number;
};
export type Told = {
    /**
     * as it is after this update
     */
    turn: TurnView;
    /**
     * the place to go on from
     */
    cursor: string;
};
export type TextAdded = Told & {
    kind: "TextAdded";
    text: string;
};
export type ReasoningAdded = Told & {
    kind: "ReasoningAdded";
    text: string;
};
export type Restarted = Told & {
    kind: "Restarted";
    dropped: number;
    reasoning_dropped: number;
};
export type Responded = Told & {
    kind: "Responded";
    message: Message;
};
export type CallDrafted = Told & {
    kind: "CallDrafted";
    call: CallView;
};
export type CallBegan = Told & {
    kind: "CallBegan";
    call: CallView;
};
export type CallProgress = Told & {
    kind: "CallProgress";
    call: CallView;
    text: string;
};
export type CallAsked = Told & {
    kind: "CallAsked";
    call: CallView;
};
export type CallAnswered = Told & {
    kind: "CallAnswered";
    call: CallView;
};
export type CallDone = Told & {
    kind: "CallDone";
    call: CallView;
};
export type Retrying = Told & {
    kind: "Retrying";
    reason: string;
    at: number;
    attempt: number;
    model: string | null;
};
export type Paused = Told & {
    kind: "Paused";
    open: CallView[];
};
export type Finished = Told & {
    kind: "Finished";
};
export type Happened = Told & {
    kind: "Happened";
    entry: Entry;
};
/**
 * What the model says as sanitised HTML, for a page: the block `block` of a response that is streamed, or a whole committed
 * message (`message_id`). Only readers that ask for it are told.
 */
export type Rendered = Told & {
    kind: "Rendered";
    attempt: number;
    block: number | null;
    message_id: string | null;
    html: string;
};
export type Update = TextAdded | ReasoningAdded | Restarted | Responded | CallDrafted | CallBegan | CallProgress | CallAsked | CallAnswered | CallDone | Retrying | Paused | Finished | Happened | Rendered;
