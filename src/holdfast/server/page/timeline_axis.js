/**
 * Where spans are drawn: a time axis on which long quiet stretches are folded, and lanes with rows. Pure.
 *
 * A chat that waited a night for a person would else be a line with nothing on it. A folded stretch keeps a width of its
 * own, is marked, and says how long it was.
 */

/** @typedef {import("./timeline_model.js").Span} Span */
/** @typedef {import("./timeline_model.js").Picture} Picture */
/** @typedef {{ from: number, until: number, x: number, width: number, folded: boolean }} Piece x and width in milliseconds as drawn */
/** @typedef {import("./timeline_model.js").Hold} Hold */
/** @typedef {{ id: string, title: string, rows: Span[][], holds: Hold[], cause: string | null }} Lane `cause`: how its worker lost the chat at last */

const QUIET_MS = 5_000; // a stretch that is shorter is drawn as it is
const FOLDED_SHARE = 0.05; // of all that is busy
const FOLDED_MS = [400, 30_000];
const QUIET = new Set(["turn", "approval", "question", "client", "child", "timer"]);
const AROUND_MS = 150; // of a mark

/** The stretches in which something is at work, in order, and apart. @returns {[number, number][]} */
function busyStretches(/** @type {Picture} */ picture, /** @type {number} */ now) {
  /** @type {[number, number][]} */
  const all = picture.spans.filter((span) => !QUIET.has(span.kind)).map((span) => [span.from, span.until ?? now]);
  for (const mark of picture.marks) all.push([mark.at - AROUND_MS, mark.at + AROUND_MS]);
  for (const span of picture.spans) if (QUIET.has(span.kind)) all.push([span.from, span.from + AROUND_MS], [(span.until ?? now) - AROUND_MS, span.until ?? now]);
  all.sort((one, other) => one[0] - other[0]);
  /** @type {[number, number][]} */
  const apart = [];
  for (const [from, until] of all) {
    const last = apart.at(-1);
    if (last && from - last[1] < QUIET_MS) last[1] = Math.max(last[1], until);
    else apart.push([from, until]);
  }
  return apart;
}

export class Axis {
  constructor(/** @type {Picture} */ picture, /** @type {number} */ now, { fold = true } = {}) {
    /** @type {Piece[]} */
    this.pieces = [];
    this.width = 0;
    const until = Math.max(picture.until, picture.from + 1);
    const busy = fold ? busyStretches(picture, now) : [[picture.from, until]];
    const worked = busy.reduce((sum, [a = 0, b = 0]) => sum + b - a, 0);
    const folded = Math.min(Math.max(worked * FOLDED_SHARE, FOLDED_MS[0] ?? 0), FOLDED_MS[1] ?? 0);
    let at = picture.from;
    for (const [a = 0, b = 0] of busy) {
      const [from, to] = [Math.max(a, at), Math.min(Math.max(b, at), until)];
      if (from > at) this._add(at, from, from - at > QUIET_MS ? folded : from - at, from - at > QUIET_MS);
      if (to > from) this._add(from, to, to - from, false);
      at = Math.max(at, to);
    }
    if (until > at) this._add(at, until, until - at > QUIET_MS && fold ? folded : until - at, until - at > QUIET_MS && fold);
  }

  _add(/** @type {number} */ from, /** @type {number} */ until, /** @type {number} */ width, /** @type {boolean} */ folded) {
    this.pieces.push({ from, until, x: this.width, width, folded });
    this.width += width;
  }

  /** Where an instant is drawn. */
  xOf(/** @type {number} */ at) {
    for (const piece of this.pieces) {
      if (at <= piece.until) return piece.x + (Math.max(0, at - piece.from) / (piece.until - piece.from)) * piece.width;
    }
    return this.width;
  }

  /** Which instant is drawn there. */
  atOf(/** @type {number} */ x) {
    for (const piece of this.pieces) {
      if (x <= piece.x + piece.width) return piece.from + (Math.max(0, x - piece.x) / piece.width) * (piece.until - piece.from);
    }
    return this.pieces.at(-1)?.until ?? 0;
  }
}

/** In as few rows as they need, so that none covers another. @returns {Span[][]} */
function inRows(/** @type {Span[]} */ spans, /** @type {number} */ now) {
  /** @type {Span[][]} */
  const rows = [];
  for (const span of [...spans].sort((one, other) => one.from - other.from)) {
    const row = rows.find((others) => (others.at(-1)?.until ?? now + 1) <= span.from);
    if (row) row.push(span);
    else rows.push([span]);
  }
  return rows;
}

/**
 * The chat's own lane (its turns, what it waited for), then one for each worker, in the order in which they had it. Holds
 * of workers that the journal does not name share one. @returns {Lane[]}
 */
export function lanesOf(/** @type {Picture} */ picture, /** @type {number} */ now) {
  const own = picture.spans.filter((span) => isOwn(span));
  /** @type {Lane[]} */
  const lanes = [{ id: "chat", title: "chat", rows: inRows(own, now), holds: [], cause: null }];
  /** @type {Map<string, { spans: Span[], lane: Lane }>} */
  const workers = new Map();
  for (const hold of picture.holds) {
    const name = hold.worker ?? "";
    const found = workers.get(name) ?? { spans: [], lane: { id: `worker ${name}`, title: name || "a worker", rows: [], holds: [], cause: null } };
    workers.set(name, found);
    found.spans.push(...picture.spans.filter((span) => span.hold === hold && !isOwn(span)));
    found.lane.holds.push(hold);
    found.lane.cause = hold.cause;
  }
  for (const { spans, lane } of workers.values()) lanes.push({ ...lane, rows: inRows(spans, now) });
  return lanes;
}

/** No worker has to hold the chat for it. */
export function isOwn(/** @type {Span} */ span) {
  return QUIET.has(span.kind) || ["due", "stop", "gap", "handover"].includes(span.kind);
}

const STEPS_MS = [10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5];

/** Round distances from the beginning, at most so many. @returns {{ at: number, after: number }[]} */
export function ticks(/** @type {number} */ origin, /** @type {number} */ from, /** @type {number} */ until, /** @type {number} */ most) {
  const step = STEPS_MS.find((ms) => (until - from) / ms <= most) ?? 864e5;
  const found = [];
  for (let after = Math.ceil((from - origin) / step) * step; origin + after <= until && found.length <= 2 * most; after += step) found.push({ at: origin + after, after });
  return found;
}
