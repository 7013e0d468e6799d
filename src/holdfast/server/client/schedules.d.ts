/** Schedules: when agents start by themselves, and what became of each instant. */
/** @typedef {import("./connection.js").Connection} Connection */
/** @typedef {import("./api.js").components["schemas"]} Schemas */
/** @typedef {import("./chat.js").Asking} Asking */
/** @typedef {import("./chat.js").Sending} Sending */
export class Schedules {
    constructor(connection: Connection);
    _connection: import("./connection.js").Connection;
    /** Newest first, a page of them. @returns {Promise<Schemas["ScheduleList"]>} */
    list({ signal, ...query }?: {
        owner?: string;
        before?: string;
        limit?: number;
    } & Asking): Promise<Schemas["ScheduleList"]>;
    /** What became of each instant of one, newest first, a page of them. @returns {Promise<Schemas["OccurrenceList"]>} */
    occurrences(id: string, { signal, ...query }?: {
        before?: number;
        limit?: number;
    } & Asking): Promise<Schemas["OccurrenceList"]>;
    /** What it has begun goes on. @returns {Promise<Schemas["ScheduleShown"]>} */
    pause(id: string, note?: string, { signal }?: Asking): Promise<Schemas["ScheduleShown"]>;
    /** From now on. @returns {Promise<Schemas["ScheduleShown"]>} */
    resume(id: string, { signal }?: Asking): Promise<Schemas["ScheduleShown"]>;
    /** One occurrence now. Where the policy skips it, the answer says so. @returns {Promise<Schemas["OccurrenceShown"]>} */
    trigger(id: string, { key, signal, ...given }?: Schemas["TriggerGiven"] & Sending): Promise<Schemas["OccurrenceShown"]>;
}
export type Connection = import("./connection.js").Connection;
export type Schemas = import("./api.js").components["schemas"];
export type Asking = import("./chat.js").Asking;
export type Sending = import("./chat.js").Sending;
