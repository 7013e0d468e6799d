/** Schedules: when agents start by themselves, and what became of each instant. */

/** @typedef {import("./connection.js").Connection} Connection */
/** @typedef {import("./api.js").components["schemas"]} Schemas */
/** @typedef {import("./chat.js").Asking} Asking */
/** @typedef {import("./chat.js").Sending} Sending */

export class Schedules {
  constructor(/** @type {Connection} */ connection) {
    this._connection = connection;
  }

  /** Newest first, a page of them. @returns {Promise<Schemas["ScheduleList"]>} */
  list(/** @type {{ owner?: string, before?: string, limit?: number } & Asking} */ { signal, ...query } = {}) {
    return this._connection.ask("GET", "/api/schedules", { query, signal });
  }

  /** What became of each instant of one, newest first, a page of them. @returns {Promise<Schemas["OccurrenceList"]>} */
  occurrences(/** @type {string} */ id, /** @type {{ before?: number, limit?: number } & Asking} */ { signal, ...query } = {}) {
    return this._connection.ask("GET", `${pathOf(id)}/occurrences`, { query, signal });
  }

  /** What it has begun goes on. @returns {Promise<Schemas["ScheduleShown"]>} */
  pause(/** @type {string} */ id, note = "", /** @type {Asking} */ { signal } = {}) {
    return this._connection.ask("POST", `${pathOf(id)}/pause`, { body: { note }, signal });
  }

  /** From now on. @returns {Promise<Schemas["ScheduleShown"]>} */
  resume(/** @type {string} */ id, /** @type {Asking} */ { signal } = {}) {
    return this._connection.ask("POST", `${pathOf(id)}/resume`, { signal });
  }

  /** One occurrence now. Where the policy skips it, the answer says so. @returns {Promise<Schemas["OccurrenceShown"]>} */
  trigger(/** @type {string} */ id, /** @type {Schemas["TriggerGiven"] & Sending} */ { key, signal, ...given } = {}) {
    return this._connection.ask("POST", `${pathOf(id)}/trigger`, { body: given, key, signal });
  }
}

function pathOf(/** @type {string} */ id) {
  return `/api/schedules/${encodeURIComponent(id)}`;
}
