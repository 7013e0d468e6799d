/** Clear words for what the runtime tells in codes, and for times, counts and money. Pure. */

const UNITS = /** @type {const} */ ([[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1000, "s"]]);

/** How long: `350 ms`, `4.2 s`, `3 min 20 s`. */
export function duration(/** @type {number} */ ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  for (let n = 0; n < UNITS.length - 1; n++) {
    const [size, unit] = UNITS[n];
    if (ms < size) continue;
    const rest = Math.floor((ms % size) / UNITS[n + 1][0]);
    return `${Math.floor(ms / size)} ${unit}${rest ? ` ${rest} ${UNITS[n + 1][1]}` : ""}`;
  }
  return "";
}

/** How long ago, in one unit. */
export function ago(/** @type {number} */ at, now = Date.now()) {
  const ms = Math.max(0, now - at);
  if (ms < 5000) return "now";
  for (const [size, unit] of UNITS) if (ms >= size) return `${Math.floor(ms / size)} ${unit} ago`;
  return "now";
}

const CLOCK = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

const TODAY = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });

/** An instant in few words: today's by its time alone. */
export function when(/** @type {number} */ at, now = Date.now()) {
  return new Date(at).toDateString() === new Date(now).toDateString() ? TODAY.format(at) : CLOCK.format(at);
}

export function clock(/** @type {number} */ at) {
  return CLOCK.format(at);
}

export function count(/** @type {number} */ n) {
  return n < 10_000 ? String(n) : new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 }).format(n);
}

export function money(/** @type {number} */ cost) {
  return `$${cost.toFixed(cost < 0.1 ? 4 : 2)}`;
}

export function bytes(/** @type {number} */ n) {
  if (n < 1000) return `${n} B`;
  return n < 1_000_000 ? `${(n / 1000).toFixed(1)} kB` : `${(n / 1_000_000).toFixed(1)} MB`;
}

/**
 * A name as it is, on one line: what would not be seen, or would turn the line around, is shown as its number.
 * @param {string} text
 */
export function plain(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    (char) => (char === "\n" || char === "\t" ? " " : `⟨U+${char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`));
}

/** A table's own entry: a name that came over the wire may be one that every object has. @template T @param {Record<string, T>} table @param {string} name */
function of(table, name) {
  return Object.hasOwn(table, name) ? table[name] : null;
}

/** @type {Record<string, [string, string]>} words, and the class of their chip */
const STATES = {
  idle: ["at rest", ""],
  running: ["working", "info"],
  stopping: ["stopping", "warn"],
  waiting: ["waiting", "warn"],
  failed: ["failed", "bad"],
  done: ["done", "ok"],
  stopped: ["stopped", "warn"],
  queued: ["queued", ""],
};

/** @returns {[string, string]} */
export function stateWords(/** @type {string} */ state) {
  return of(STATES, state) ?? [plain(state), ""];
}

/** What went wrong with something that was asked of the server. */
export function problemWords(/** @type {unknown} */ error) {
  if (error instanceof Error && "status" in error && error.status === 401) return "you are logged out. Log in again: what you wrote is kept.";
  return error instanceof Error ? plain(error.message) : "it went wrong";
}

/** @type {Record<string, string>} */
const CAUSES = {
  user: "Stopped by a person.",
  parent: "Stopped by the agent that asked for it.",
  superseded: "Cut short: a newer message took its place.",
  shutdown: "Its worker was shut down. Another one goes on.",
  lease_lost: "Its worker fell silent. Another one goes on.",
  crash: "Its worker died. Another one goes on.",
  deadline: "It took longer than it may.",
  budget: "A budget is used up. Raise it, then let the chat go on.",
};

export function causeWords(/** @type {string | null | undefined} */ cause, /** @type {string | null | undefined} */ detail = null) {
  const words = cause ? of(CAUSES, cause) ?? `Ended: ${plain(cause)}.` : "";
  return detail ? `${words} ${plain(detail)}`.trim() : words;
}

/** Of a call: words, the class of its chip. @type {Record<string, [string, string]>} */
const CALLS = {
  drafted: ["being written", ""],
  planned: ["planned", ""],
  asking: ["asks for approval", "warn"],
  approved: ["approved", "info"],
  started: ["running", "info"],
  external: ["waits for an answer", "warn"],
  done: ["done", "ok"],
  error: ["failed", "bad"],
  denied: ["denied", "bad"],
  unknown: ["outcome unknown", "bad"],
  cancelled: ["cancelled", ""],
};

/** @returns {[string, string]} */
export function callWords(/** @type {string} */ state) {
  return of(CALLS, state) ?? [plain(state), ""];
}

/** More about a result that the runtime wrote in place of the tool. @type {Record<string, string>} */
const SYNTHETIC = {
  cancelled: "It was cancelled before its outcome was known.",
  unknown: "Outcome unknown: its worker died while it ran, so it may or may not have happened. It was not run again; check before you repeat it.",
  denied: "It was not allowed to run.",
  expired: "Nobody answered in time.",
  refused: "It was never run.",
  not_carried_over: "It was still open where this chat was forked.",
  repaired: "Its result was missing and was filled in.",
};

export function syntheticWords(/** @type {string} */ why) {
  return of(SYNTHETIC, why);
}
