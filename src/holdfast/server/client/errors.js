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
  constructor(/** @type {string} */ message, /** @type {Details} */ details = {}) {
    super(message, { cause: details.cause });
    this.name = new.target.name;
    /** Stable: `not_found`, `refused`, … */
    this.code = details.code ?? "error";
    /** Of the answer; 0: there was none. */
    this.status = details.status ?? 0;
    /** What the server said of it (RFC 9457). */
    this.problem = details.problem ?? null;
  }
}

export class Unauthorized extends HoldfastError {}
export class NotFound extends HoldfastError {}
export class Refused extends HoldfastError {}
export class InvalidInput extends HoldfastError {}
export class LimitReached extends HoldfastError {}
export class ServerFailed extends HoldfastError {}

export class WrongCursor extends InvalidInput {
  constructor(/** @type {string} */ message, /** @type {Details} */ details = {}) {
    super(message, { code: "wrong_cursor", ...details });
  }
}

export class ConnectionLost extends HoldfastError {
  constructor(/** @type {string} */ message, /** @type {Details} */ details = {}) {
    super(message, { code: "connection_lost", ...details });
  }
}

export class TurnTimeout extends HoldfastError {
  constructor(/** @type {string} */ message, /** @type {import("./api.js").components["schemas"]["TurnShown"]} */ turn) {
    super(message, { code: "turn_timeout" });
    this.turn = turn;
  }
}

/** @type {Record<number, typeof HoldfastError>} */
const BY_STATUS = {
  400: InvalidInput, 401: Unauthorized, 403: Unauthorized, 404: NotFound, 409: Refused, 413: LimitReached, 422: InvalidInput,
  421: Unauthorized, 429: LimitReached,
};

/** The error that problem details tell of. @returns {HoldfastError} */
export function errorOf(/** @type {number} */ status, /** @type {Problem | null} */ problem) {
  const code = problem?.code ?? (status >= 500 ? "server_failed" : "http_error");
  const words = problem?.detail ?? `the server answered ${status}`;
  const details = { code, status, problem: problem ?? undefined };
  if (code === "wrong_cursor") return new WrongCursor(words, details);
  const make = BY_STATUS[status] ?? (status >= 500 ? ServerFailed : HoldfastError);
  return new make(words, details);
}
