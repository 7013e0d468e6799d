/**
 * The timeline as a drawing: lanes of workers, spans on them, kills across all of them. It knows no chat and no server: it
 * is given a picture and draws the part of it that is in its window; it tells what was chosen and where it was dragged.
 */

import { s as svg } from "./dom.js";
import { Axis, lanesOf, ticks } from "./timeline_axis.js";
import { lasting, shortName } from "./timeline_model.js";

/** @typedef {import("./timeline_model.js").Span} Span */
/** @typedef {import("./timeline_model.js").Picture} Picture */
/** @typedef {import("./timeline_axis.js").Lane} Lane */
/** @typedef {{ from: number, until: number }} Window on the axis; null: all of it */
/** @typedef {{ choose: (span: Span, opens: boolean) => void, travel: (at: number) => void }} Told */

const ROW = 24;
const BAR = 18;
const HEAD = 34; // above the lanes: the axis
const TITLE = 20; // above each lane
const PAD = 10;
const SPAN_MIN = 4; // pixels
const DRAWN_MAX = 1_200;
const LETTER = 6.4; // a narrow letter at the size of labels, roughly

const heightOf = (/** @type {Lane} */ lane) => TITLE + Math.max(1, lane.rows.length) * ROW + PAD;

/** The first of these that fits, or as much of the last as does. */
function label(/** @type {string[]} */ texts, /** @type {number} */ width) {
  return texts.find((text) => text.length * LETTER + 10 <= width) ?? fitting(texts.at(-1) ?? "", width);
}

/** As much of a text as fits. */
function fitting(/** @type {string} */ text, /** @type {number} */ width) {
  const letters = Math.floor((width - 10) / LETTER);
  if (letters < 3) return "";
  return text.length <= letters ? text : `${text.slice(0, letters - 1)}…`;
}

export class Drawing {
  constructor(/** @type {Told} */ told) {
    this._told = told;
    this.element = /** @type {SVGSVGElement} */ (svg("svg", { class: "timeline-drawing", role: "group", "aria-label": "Timeline: arrow keys move between spans, Enter opens one" }));
    /** @type {Window | null} */
    this.window = null;
    /** @type {Axis | null} */
    this._axis = null;
    /** @type {Map<string, SVGElement>} */
    this._shown = new Map();
    /** @type {Lane[]} */
    this._lanes = [];
    /** @type {SVGElement[]} */
    this._labels = []; // over the spans, which have words of their own for those who do not see them
    this._width = 0;
    this.hidden = 0; // spans that were not drawn
    this._listen();
  }

  draw(/** @type {{ picture: Picture, now: number, at: number, chosen: string | null, fold: boolean, width: number }} */ { picture, now, at, chosen, fold, width }) {
    const focused = this._focusedId();
    const axis = (this._axis = new Axis(picture, now, { fold }));
    this._width = width;
    this._lanes = lanesOf(picture, now);
    if (this.window && this.window.until > axis.width) this.window = { from: Math.max(0, axis.width - (this.window.until - this.window.from)), until: axis.width };
    const height = HEAD + this._lanes.reduce((sum, lane) => sum + heightOf(lane), 0);
    this.element.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.element.setAttribute("width", String(width));
    this.element.setAttribute("height", String(height));
    this._shown.clear();
    const grounds = [];
    this._labels = [];
    const spans = [];
    let y = HEAD;
    this.hidden = 0;
    for (const lane of this._lanes) {
      grounds.push(...this._ground(lane, y, width, now));
      spans.push(...this._spans(lane, y, width, now, chosen));
      y += heightOf(lane);
    }
    this.element.replaceChildren(
      this._patterns(), ...grounds, ...this._folds(axis, height), ...this._ticks(axis, picture.from, width, height),
      ...this._losses(picture, now, height), ...spans, ...this._labels, ...this._marks(picture), this._head(at, height));
    this._rove(chosen);
    if (focused) this._shown.get(focused)?.focus({ preventScroll: true });
  }

  /** In pixels. */
  x(/** @type {number} */ at) {
    if (!this._axis) return 0;
    const { from, until } = this.window ?? { from: 0, until: this._axis.width };
    return PAD + ((this._axis.xOf(at) - from) / (until - from || 1)) * (this._width - 2 * PAD);
  }

  /** Closer by a factor, around an instant or the middle. */
  zoom(/** @type {number} */ factor, /** @type {number | null} */ at = null) {
    if (!this._axis) return;
    const whole = this._axis.width;
    const { from, until } = this.window ?? { from: 0, until: whole };
    const middle = at === null ? (from + until) / 2 : this._axis.xOf(at);
    const size = Math.min(whole, Math.max(20, (until - from) / factor));
    const start = Math.min(Math.max(0, middle - (middle - from) * (size / (until - from || 1))), whole - size);
    this.window = size >= whole ? null : { from: start, until: start + size };
  }

  pan(/** @type {number} */ pixels) {
    if (!this._axis || !this.window) return;
    const size = this.window.until - this.window.from;
    const from = Math.min(Math.max(0, this.window.from + (pixels / (this._width - 2 * PAD)) * size), this._axis.width - size);
    this.window = { from, until: from + size };
  }

  /** So that a span is to be seen. */
  reveal(/** @type {Span} */ span) {
    if (!this._axis || !this.window) return;
    const x = this._axis.xOf(span.from);
    const size = this.window.until - this.window.from;
    if (x >= this.window.from && x <= this.window.until) return;
    const from = Math.min(Math.max(0, x - size / 4), this._axis.width - size);
    this.window = { from, until: from + size };
  }

  focus(/** @type {string} */ id) {
    this._shown.get(id)?.focus();
  }

  // --- its parts -----------------------------------------------------------------------------------------------------

  _patterns() {
    const hatch = svg("pattern", { id: "timeline-hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("rect", { width: 3, height: 7, class: "hatch" }));
    return svg("defs", {}, hatch);
  }

  _folds(/** @type {Axis} */ axis, /** @type {number} */ height) {
    return axis.pieces.filter((piece) => piece.folded).map((piece) => {
      const [a, b] = [this.x(piece.from), this.x(piece.until)];
      return svg("g", { class: "fold" }, svg("rect", { x: a, y: HEAD - 6, width: Math.max(2, b - a), height: height - HEAD + 6 }), svg("text", { x: (a + b) / 2, y: 12, "text-anchor": "middle" }, b - a > 34 ? lasting(piece.until - piece.from) : "⋯"));
    });
  }

  _ticks(/** @type {Axis} */ axis, /** @type {number} */ origin, /** @type {number} */ width, /** @type {number} */ height) {
    const found = [];
    let free = -Infinity;
    const { from, until } = this.window ?? { from: 0, until: axis.width };
    for (const piece of axis.pieces) {
      if (piece.folded || piece.x + piece.width < from || piece.x > until) continue;
      const share = Math.min(1, piece.width / (until - from || 1));
      for (const tick of ticks(origin, Math.max(piece.from, axis.atOf(from)), Math.min(piece.until, axis.atOf(until)), Math.max(1, Math.floor((share * width) / 90)))) {
        const x = this.x(tick.at);
        if (x < free || x > width - 30) continue;
        free = x + 64;
        found.push(svg("g", { class: "tick" }, svg("line", { x1: x, x2: x, y1: 18, y2: height }), svg("text", { x: x + 4, y: 28 }, tick.after === 0 ? "0" : `+${lasting(tick.after)}`)));
      }
    }
    return found;
  }

  /** Across all lanes: whoever had the chat, nobody had it then. */
  _losses(/** @type {Picture} */ picture, /** @type {number} */ now, /** @type {number} */ height) {
    return picture.spans.filter((span) => span.kind === "gap" || span.kind === "handover").map((span) => {
      const [a, b] = [this.x(span.from), this.x(span.until ?? now)];
      const band = svg("rect", { x: a, y: HEAD - 4, width: Math.max(2, b - a), height: height - HEAD + 4, class: "band", fill: span.kind === "gap" ? "url(#timeline-hatch)" : "none" });
      return svg("g", { class: `loss ${span.kind}` }, band, svg("line", { x1: a, x2: a, y1: HEAD - 4, y2: height, class: "edge" }));
    });
  }

  /** What lies under the spans of a lane: whose it is, and when that one had the chat. */
  _ground(/** @type {Lane} */ lane, /** @type {number} */ y, /** @type {number} */ width, /** @type {number} */ now) {
    const lost = lane.cause === "crash" ? " · died" : lane.cause === "lease_lost" ? " · lost" : lane.cause === "shutdown" ? " · left" : "";
    const parts = [
      svg("rect", { x: 0, y, width, height: heightOf(lane), class: `lane ${lane.id === "chat" ? "own" : ""}` }),
      svg("text", { x: PAD, y: y + 13, class: `lane-title ${lost ? "gone" : ""}` }, `${shortName(lane.title)}${lost}`, svg("title", {}, lane.title)),
    ];
    for (const hold of lane.holds) {
      const [a, b] = [this.x(hold.from), this.x(hold.until ?? now)];
      parts.push(svg("rect", { x: a, y: y + TITLE - 3, width: Math.max(2, b - a), height: heightOf(lane) - TITLE - PAD + 4, rx: 5, class: `hold ${hold.cause ?? ""}` }));
    }
    return parts;
  }

  _spans(/** @type {Lane} */ lane, /** @type {number} */ y, /** @type {number} */ width, /** @type {number} */ now, /** @type {string | null} */ chosen) {
    return lane.rows.flatMap((row, n) => row.map((span) => this._span(span, y + TITLE + n * ROW, width, now, chosen)).filter((drawn) => drawn !== null));
  }

  _span(/** @type {Span} */ span, /** @type {number} */ y, /** @type {number} */ width, /** @type {number} */ now, /** @type {string | null} */ chosen) {
    const [a, b] = [this.x(span.from), this.x(span.until ?? now)];
    if (b < -20 || a > width + 20) return null;
    if (this._shown.size >= DRAWN_MAX) {
      this.hidden += 1;
      return null;
    }
    const [left, right] = [Math.max(a, -20), Math.min(b, width + 20)];
    const size = Math.max(SPAN_MIN, right - left);
    const took = lasting((span.until ?? now) - span.from);
    const name = span.state === "unknown" ? `? ${span.name}` : span.kind === "gap" ? "✕ no worker" : span.kind === "attempt" ? span.name || "model" : span.kind === "due" ? "due" : span.name || span.kind;
    const parts = [svg("rect", { x: left, y, width: size, height: BAR, rx: 4, class: "bar" })];
    if (span.streams_at !== null) {
      const from = Math.max(left, this.x(span.streams_at));
      parts.push(svg("rect", { x: from, y, width: Math.max(0, right - from), height: BAR, rx: 4, class: "streams" }));
    }
    const visible = Math.max(4, left + 5);
    const text = label(span.kind === "turn" ? [span.name] : [`${name} ${took}`, span.kind === "gap" ? took : name], right - visible + 5);
    if (text) this._labels.push(svg("text", { x: visible, y: y + 13, class: `label ${span.kind}`, "aria-hidden": "true" }, text));
    parts.push(svg("title", {}, `${span.words} (${took})`));
    const made = svg("g", { class: `span ${span.kind} ${span.state} ${span.until === null ? "open" : ""} ${span.id === chosen ? "chosen" : ""}`, role: "button", tabindex: -1, "aria-label": `${span.words} ${took}`, "aria-pressed": String(span.id === chosen) }, ...parts);
    made.dataset["id"] = span.id;
    this._shown.set(span.id, made);
    return made;
  }

  /** One of a kind for each pixel: a thousand messages of the same instant are one. */
  _marks(/** @type {Picture} */ picture) {
    const seen = new Set();
    return picture.marks.flatMap((mark) => {
      const x = this.x(mark.at);
      const kind = mark.kind === "message" ? "said" : mark.kind === "unknown" || mark.kind === "chat.failed" ? "bad" : "note";
      const place = `${kind} ${Math.round(x)}`;
      if (x < 0 || x > this._width || seen.has(place)) return [];
      seen.add(place);
      return svg("g", { class: `mark ${kind}` }, svg("path", { d: `M${x - 4} ${HEAD - 8}h8l-4 7z` }), svg("title", {}, mark.words));
    });
  }

  _head(/** @type {number} */ at, /** @type {number} */ height) {
    const x = this.x(at);
    return svg("g", { class: "playhead" }, svg("line", { x1: x, x2: x, y1: 14, y2: height }), svg("circle", { cx: x, cy: 14, r: 5 }));
  }

  // --- hands and keys ------------------------------------------------------------------------------------------------

  _listen() {
    /** @type {{ x: number, moved: number, travels: boolean } | null} */
    let held = null;
    this.element.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, moved: 0, travels: event.offsetY < HEAD };
      if (held.travels) this._told.travel(this._instant(event.offsetX));
    });
    this.element.addEventListener("pointermove", (event) => {
      if (!held || !(event.buttons & 1)) return;
      held.moved += Math.abs(event.clientX - held.x);
      if (held.travels) this._told.travel(this._instant(event.offsetX));
      else if (this.window) {
        this.pan(held.x - event.clientX);
        this.element.dispatchEvent(new CustomEvent("moved"));
      }
      held.x = event.clientX;
    });
    this.element.addEventListener("click", (event) => {
      const id = /** @type {Element} */ (event.target).closest?.("[data-id]")?.getAttribute("data-id");
      const span = id && (held?.moved ?? 0) < 6 ? this._find(id) : null;
      held = null;
      if (span) this._told.choose(span, false);
    });
    this.element.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      event.preventDefault();
      if (event.shiftKey) this.pan(event.deltaY + event.deltaX);
      else this.zoom(event.deltaY < 0 ? 1.25 : 0.8, this._instant(event.offsetX));
      this.element.dispatchEvent(new CustomEvent("moved"));
    }, { passive: false });
    this.element.addEventListener("keydown", (event) => this._key(event));
  }

  _instant(/** @type {number} */ x) {
    const { from, until } = this.window ?? { from: 0, until: this._axis?.width ?? 1 };
    return this._axis?.atOf(from + ((x - PAD) / (this._width - 2 * PAD)) * (until - from)) ?? 0;
  }

  _key(/** @type {KeyboardEvent} */ event) {
    const zooms = /** @type {Record<string, number>} */ ({ "+": 1.5, "=": 1.5, "-": 1 / 1.5 })[event.key];
    const here = this._focusedId();
    const span = here ? this._find(here) : null;
    if (zooms) this.zoom(zooms, span?.from ?? null);
    else if (event.key === "0") this.window = null;
    else if (span && (event.key === "Enter" || event.key === " ")) this._told.choose(span, true);
    else {
      const next = span && this._next(span, event.key);
      if (!next) return;
      this.reveal(next);
      this._told.choose(next, false);
      this.focus(next.id);
      event.preventDefault();
      return;
    }
    event.preventDefault();
    this.element.dispatchEvent(new CustomEvent("moved"));
  }

  /** Left and right go through time, up and down through rows. @returns {Span | null} */
  _next(/** @type {Span} */ span, /** @type {string} */ key) {
    const rows = this._lanes.flatMap((lane) => lane.rows);
    const all = rows.flat().sort((one, other) => one.from - other.from);
    const place = all.indexOf(span);
    if (key === "ArrowRight") return all[place + 1] ?? null;
    if (key === "ArrowLeft") return all[place - 1] ?? null;
    if (key === "Home") return all[0] ?? null;
    if (key === "End") return all.at(-1) ?? null;
    const step = key === "ArrowDown" ? 1 : key === "ArrowUp" ? -1 : 0;
    const row = step ? rows[rows.findIndex((others) => others.includes(span)) + step] : null;
    return row?.reduce((best, other) => (Math.abs(other.from - span.from) < Math.abs(best.from - span.from) ? other : best)) ?? null;
  }

  _find(/** @type {string} */ id) {
    return this._lanes.flatMap((lane) => lane.rows.flat()).find((span) => span.id === id) ?? null;
  }

  _focusedId() {
    const focused = document.activeElement;
    return focused && this.element.contains(focused) ? focused.getAttribute("data-id") : null;
  }

  /** One of them is in the order of the tab key. */
  _rove(/** @type {string | null} */ chosen) {
    const first = (chosen !== null && this._shown.get(chosen)) || this._shown.values().next().value;
    first?.setAttribute("tabindex", "0");
  }
}
