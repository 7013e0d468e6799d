/** Takes the events of one chat in order. Holds a turn, never more. */
export class Fold {
    constructor({ settled, place }?: {
        settled?: boolean | undefined;
        place?: string | undefined;
    });
    _settled: boolean;
    _place: string;
    _turnSeq: number;
    _attempt: number;
    /** @type {Set<string>} */
    _drafted: Set<string>;
    /** @type {[number, number]} as in a mark */
    _drafts: [number, number];
    _text: ShownWords;
    _reasoning: ShownWords;
    _answerFrom: number;
    _responseOver: boolean;
    /** @type {Pending[]} */
    _pending: Pending[];
    _told: number;
    _skipped: number;
    turn: TurnView;
    /**
     * After the turn's entries up to that place were taken: goes on as if it had told everything up to there. What is
     * streamed is to be taken from its beginning.
     */
    resume(mark: Mark | null, place: string): void;
    /** A person or a client has to act before anything happens. */
    get paused(): boolean;
    /** `cursor` is the event's id. @returns {Update[]} */
    take(event: ChatEvent, cursor: string): Update[];
    /**
     * Only after its last update is a reader past the event. Before, it is at the one before, with more shown: what the
     * event has committed is not committed there.
     */
    _finish(cursor: string): import("./updates.js").Update[];
    _tell(kind: Update["kind"], fields?: object): void;
    /** @returns {Mark} */
    _mark(told: number): Mark;
    _set(fields: Partial<TurnView>): void;
    _delta(delta: Extract<ChatEvent, {
        kind: "delta";
    }>): void;
    _tellWords(text: Heard, reasoning: Heard): void;
    _showWords(answerFrom?: number): void;
    /** This is what it came to: nothing, where it was not kept. */
    _endResponse(text?: string, reasoning?: string): void;
    /** Told as it is. */
    _happen(entry: Entry): void;
    _startTurn(entry: Of<"turn.started">): void;
    /** What was shown and not committed by now never will be. */
    _endTurn(entry: Of<"turn.ended">): void;
    _wait(entry: Of<"turn.waiting">): void;
    _loseAttempt(entry: Of<"attempt.failed">): void;
    _retry(reason: string, at: number, model: string | null): void;
    /** It took so many tokens more than its responses. What they cost is known by its end, and added to that afterwards. */
    _take(tokens: number | undefined, cost?: number): void;
    _message(entry: Of<"message">): void;
    _respond(entry: Of<"message">, message: Message): void;
    _addResponse(response: Message): void;
    /** One that the fold has not heard of was asked for before its first event. */
    _call(callId: string, name?: string, chatId?: string | null): import("./updates.js").CallView;
    _keep(call: CallView): import("./updates.js").CallView;
    _beginCall(callId: string, at: number, given?: string | undefined): void;
    _changeCall(entry: Of<"call.changed">): void;
    _endCall(result: Extract<Message["parts"][number], {
        kind: "tool_result";
    }>, state: CallView["state"], at: number): void;
    /** A call of a sub-agent. Its result is told in its own chat. */
    _descendantAsks(entry: Of<"descendant.asking">): void;
    _descendantAnswered(entry: Of<"descendant.answered">): void;
    _note(entry: Of<"note">): void;
    /** A history that is cut: what the turn had said is not said any more. */
    _cut(entry: Of<"history.cut">): void;
}
export type ChatEvent = import("./updates.js").ChatEvent;
export type Entry = import("./updates.js").Entry;
export type CallView = import("./updates.js").CallView;
export type Message = import("./updates.js").Message;
export type Update = import("./updates.js").Update;
export type Heard = import("./shown_words.js").Heard;
export type Mark = import("./update_cursor.js").Mark;
export type Of<K extends Entry["kind"]> = Extract<Entry, {
    kind: K;
}>;
export type Pending = {
    kind: Update["kind"];
    turn: TurnView;
    mark: Mark;
    fields: object;
};
import { ShownWords } from "./shown_words.js";
import { TurnView } from "./updates.js";
