/** The error that problem details tell of. @returns {HoldfastError} */
export function errorOf(status: number, problem: Problem | null): HoldfastError;
/**
 * What can go wrong, by who has to act. `code` is stable, and the server's own where it has one.
 *
 *     HoldfastError
 *     ├─ Unauthorized    the token is missing or wrong
 *     ├─ NotFound        no such chat, turn or call
 *     ├─ Refused         the chat's state does not allow it now
 *     ├─ InvalidInput    the request was wrong
 *     │  └─ WrongCursor  not a place in this chat: begin anew
 *     ├─ LimitReached    too large, or too many
 *     ├─ ServerFailed    the server, or its store, cannot answer
 *     ├─ ConnectionLost  no answer for as long as the caller would wait
 *     └─ TurnTimeout     the turn goes on: ask for it again
 */
/** @typedef {import("./api.js").components["schemas"]["Problem"]} Problem */
/** @typedef {{ code?: string, status?: number, problem?: Problem, cause?: unknown }} Details */
export class HoldfastError extends Error {
    constructor(message: string, details?: Details);
    /** Stable: `not_found`, `refused`, … */
    code: string;
    /** Of the answer; 0: there was none. */
    status: number;
    /** What the server said of it (RFC 9457). */
    problem: ({
        type: string;
        title: string;
        status: number;
        code: string;
        detail: string;
    } & {
        [key: string]: unknown;
    }) | null;
}
export class Unauthorized extends HoldfastError {
}
export class NotFound extends HoldfastError {
}
export class Refused extends HoldfastError {
}
export class InvalidInput extends HoldfastError {
}
export class LimitReached extends HoldfastError {
}
export class ServerFailed extends HoldfastError {
}
export class WrongCursor extends InvalidInput {
}
export class ConnectionLost extends HoldfastError {
}
export class TurnTimeout extends HoldfastError {
    constructor(message: string, turn: import("./api.js").components["schemas"]["TurnShown"]);
    turn: {
        chat_id: string;
        number: number | null;
        state: "queued" | "running" | "waiting" | "done" | "stopped" | "failed";
        cause: import("./api.js").components["schemas"]["Cause"] | null;
        detail: string | null;
        error: import("./api.js").components["schemas"]["FailureShown"] | null;
        finish: string | null;
        text: string | null;
        partial_text: string;
        open: import("./api.js").components["schemas"]["OpenCallShown"][];
        usage: import("./api.js").components["schemas"]["TurnUsageShown"];
        cost: number | null;
    };
}
export type Problem = import("./api.js").components["schemas"]["Problem"];
export type Details = {
    code?: string;
    status?: number;
    problem?: Problem;
    cause?: unknown;
};
