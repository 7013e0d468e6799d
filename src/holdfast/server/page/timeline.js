/**
 * A chat's life across workers, as a picture that grows while one looks at it: `#/chats/ID/timeline`, at an entry with
 * `?at=CURSOR`. Time travel goes along the entries of the journal; the chat is shown as it was at each.
 */

import { asOf } from "./as_of.js";
import { h, replace } from "./dom.js";
import { TimelineModel } from "./timeline_model.js";
import { pastPanel, spanPanel, spanTable, whyPanel } from "./timeline_panels.js";
import { Drawing } from "./timeline_picture.js";
import { plain } from "./words.js";

/** @typedef {import("./timeline_model.js").Span} Span */

const WHOLE_MESSAGES = 600; // a chat with more opens at its last turn
const LOADED_MAX = 3_000; // entries, until more are asked for
const TICK_MS = 250; // while something goes on, the picture grows so often
const TABLE_MAX = 400;

export function show(/** @type {any} */ context, /** @type {{ path: string[], query: URLSearchParams }} */ place) {
  const view = new TimelineView(context, place.path[1] ?? "", place.query.get("at"));
  return { title: "Timeline", element: view.element, close: () => view.close() };
}

class TimelineView {
  constructor(/** @type {any} */ context, /** @type {string} */ chatId, /** @type {string | null} */ at) {
    this._context = context;
    this._chatId = chatId;
    this._chat = context.client.chat(chatId);
    this._linked = at; // the entry that the address names
    this._leaving = new AbortController();
    context.signal?.addEventListener("abort", () => this.close(), { once: true });
    this._model = new TimelineModel();
    this._skew = 0; // of our clock against the server's
    /** @type {Span | null} */
    this._chosen = null;
    this._picked = false; // by a person or the address; else what is most telling is shown
    /** @type {number | null} */
    this._seq = null; // where the time traveller is; null: now
    this._whole = true;
    this._fold = true;
    this._live = false;
    this._connection = "";
    this._asked = false; // for a frame to draw in
    this._said = this._moreSaid = this._pastShown = this._spanShown = ""; // what the parts show
    this._full = false; // as many entries as are loaded at once
    this._drawing = new Drawing({ choose: (span, opens) => this._choose(span, opens), travel: (at) => this._travelTo(at) });
    this._ui = this._build();
    this.element = this._ui.element;
    this._sizes = new ResizeObserver(() => this._draw());
    this._sizes.observe(this._ui.frame);
    this._timer = setInterval(() => this._tick(), TICK_MS);
    this._open();
  }

  close() {
    this._leaving.abort();
    clearInterval(this._timer);
    this._sizes.disconnect();
  }

  // --- its parts -----------------------------------------------------------------------------------------------------

  _build() {
    const id = encodeURIComponent(this._chatId);
    const title = h("h1", {}, "Timeline");
    const status = h("p", { class: "muted", role: "status" }, "Loading the journal…");
    const tools = h("div", { class: "row wrap timeline-tools" },
      h("a", { class: "button quiet", href: `#/chats/${id}` }, "Back to the chat"),
      h("button", { class: "button", type: "button", on: { click: () => this._askWhy() } }, "Why is it waiting?"),
      h("span", { class: "spacer" }),
      h("button", { class: "button quiet", type: "button", "aria-label": "Zoom out", on: { click: () => this._zoom(1 / 1.6) } }, "−"),
      h("button", { class: "button quiet", type: "button", "aria-label": "Zoom in", on: { click: () => this._zoom(1.6) } }, "+"),
      h("button", { class: "button quiet", type: "button", on: { click: () => this._fit() } }, "Fit"),
      h("label", { class: "row" }, h("input", { type: "checkbox", checked: "", on: { change: (/** @type {any} */ event) => this._setFold(event.target.checked) } }), "fold quiet time"),
    );
    const why = h("section", { class: "card timeline-why", hidden: "", "aria-live": "polite" });
    const frame = h("div", { class: "timeline-frame" });
    frame.append(this._drawing.element);
    this._drawing.element.addEventListener("moved", () => this._draw());
    const range = /** @type {HTMLInputElement} */ (h("input", { type: "range", min: "1", max: "1", value: "1", "aria-label": "Time travel: entries of the journal", on: { input: () => this._slide() } }));
    const where = h("output", { class: "muted" }, "");
    const more = h("div", { class: "row wrap" });
    const span = h("section", { class: "card timeline-span", tabindex: "-1", "aria-labelledby": "timeline-span" });
    const past = h("section", { class: "card timeline-past", "aria-label": "The chat as it was" });
    const table = h("details", { class: "timeline-table", on: { toggle: () => this._fillTable() } }, h("summary", {}, "All of it as a table"));
    const element = h("div", { class: "timeline" },
      h("header", {}, title, status), tools, why,
      h("div", { class: "card timeline-card" }, frame, h("div", { class: "travel" }, range, where), legend()),
      more, h("div", { class: "timeline-panels" }, span, past), table);
    return { element, title, status, tools, why, frame, range, where, more, span, past, table };
  }

  // --- reading -------------------------------------------------------------------------------------------------------

  async _open() {
    const { signal } = this._leaving;
    try {
      const chat = await this._chat.read({ signal });
      this._ui.title.textContent = `Timeline: ${plain(chat.title ?? chat.id)}`;
      const small = chat.messages <= WHOLE_MESSAGES;
      await this._read(small ? { after: "" } : { after: this._linked, whole_turn: true });
    } catch (error) {
      this._fail(error);
    }
  }

  /** Until the view is left, or there is as much as is loaded at once. */
  async _read(/** @type {{ after: string | null, whole_turn?: boolean }} */ from) {
    const { signal } = this._leaving;
    this._whole = this._whole && !from.whole_turn;
    const upto = this._model.entries.length + LOADED_MAX;
    this._full = false;
    const onconnection = (/** @type {string} */ state) => this._connected(state);
    for await (const { cursor, entry } of this._chat.journal({ ...from, follow: true, deltas: true, gate: this._context.gate, onconnection, signal, patience_ms: Infinity })) {
      this._model.take(entry, cursor);
      if (entry.at) this._skew = Math.max(this._skew, entry.at - Date.now());
      if (this._model.entries.length >= upto) {
        this._full = true;
        break;
      }
      if (this._live) this._later();
    }
    if (!this._live) this._beLive();
    this._later();
  }

  _connected(/** @type {string} */ state) {
    if (state === "live" && !this._live) this._beLive();
    this._connection = state;
    this._context.connection?.(state);
    this._later();
  }

  /** Everything that there was is loaded: what comes now comes as it happens. */
  async _beLive() {
    this._live = true;
    if (this._linked) this._follow(this._linked);
    this._draw();
    try {
      const why = await this._chat.why({ signal: this._leaving.signal });
      if (why.worker) this._model.nameHolder(why.worker);
    } catch {
      // the names of workers are a nicety
    }
  }

  _follow(/** @type {string} */ cursor) {
    const entry = this._model.entries.find((one) => one.cursor === cursor);
    if (!entry) return;
    this._seq = entry.seq;
    this._chosen = this._model.spanOf(entry.seq);
    this._picked = this._chosen !== null;
  }

  _fail(/** @type {unknown} */ error) {
    if (this._leaving.signal.aborted) return;
    const words = error instanceof Error ? error.message : String(error);
    replace(this._ui.status, `The journal could not be read: ${words}`);
    replace(this._ui.more, h("button", { class: "button", type: "button", on: { click: () => this._again() } }, "Try again"));
  }

  _again() {
    this._model = new TimelineModel();
    this._live = false;
    replace(this._ui.more);
    this._open();
  }

  _loadAll() {
    this._model = new TimelineModel();
    this._whole = true;
    this._leaving.abort();
    this._leaving = new AbortController();
    this._read({ after: "" }).catch((error) => this._fail(error));
  }

  // --- drawing -------------------------------------------------------------------------------------------------------

  _now() {
    return Date.now() + this._skew;
  }

  _later() {
    if (this._asked) return;
    this._asked = true;
    requestAnimationFrame(() => {
      this._asked = false;
      this._draw();
    });
  }

  _tick() {
    if (this._live && !this._full && document.visibilityState === "visible" && this._model.spans.some((span) => span.until === null)) this._draw();
  }

  _draw() {
    const { entries } = this._model;
    if (!this._live || !entries.length) {
      if (entries.length) replace(this._ui.status, `Loading the journal: ${entries.length} entries…`);
      return;
    }
    const now = this._full ? (entries.at(-1)?.at ?? this._now()) : this._now();
    const picture = this._model.picture(now);
    const seq = this._seq ?? entries.at(-1)?.seq ?? 0;
    const at = this._seq === null ? picture.until : (entries.find((entry) => entry.seq === seq)?.at ?? now);
    if (!this._picked) this._chosen = picture.spans.filter((span) => span.kind === "gap").at(-1) ?? picture.spans.at(-1) ?? null;
    const width = Math.max(280, this._ui.frame.clientWidth);
    this._drawing.draw({ picture, now, at, chosen: this._chosen?.id ?? null, fold: this._fold, width });
    this._say(picture);
    this._fillPanels(picture.from, now, seq);
  }

  _say(/** @type {import("./timeline_model.js").Picture} */ picture) {
    const lost = picture.spans.filter((span) => span.kind === "gap");
    const words = [plural(this._model.entries.length, "entry", "entries"), plural(picture.spans.filter((span) => span.kind === "turn").length, "turn")];
    if (lost.length) words.push(`${lost.length} ${lost.length === 1 ? "worker was" : "workers were"} lost`);
    if (this._connection === "reconnecting") words.push("reconnecting…");
    else if (picture.spans.some((span) => span.until === null)) words.push("live");
    if (this._drawing.hidden) words.push(`${this._drawing.hidden} spans are not drawn: zoom in`);
    const said = words.join(" · ");
    if (said !== this._said) replace(this._ui.status, (this._said = said));
    const more = `${this._whole} ${this._full}`;
    if (more === this._moreSaid) return;
    this._moreSaid = more;
    const last = this._model.entries.at(-1);
    replace(this._ui.more,
      ...(this._whole ? [] : [h("span", { class: "muted" }, "This is a long chat: earlier turns are not loaded."), h("button", { class: "button", type: "button", on: { click: () => this._loadAll() } }, "Load from the beginning")]),
      ...(this._full && last ? [h("span", { class: "muted" }, "Later entries are not loaded."), h("button", { class: "button", type: "button", on: { click: () => this._read({ after: last.cursor }).catch((error) => this._fail(error)) } }, `Load the next ${LOADED_MAX}`)] : []));
  }

  _fillPanels(/** @type {number} */ origin, /** @type {number} */ now, /** @type {number} */ seq) {
    const { entries } = this._model;
    const last = entries.at(-1)?.seq ?? 0;
    const first = entries[0]?.seq ?? 1;
    Object.assign(this._ui.range, { min: String(first), max: String(last), value: String(seq) });
    this._ui.range.setAttribute("aria-valuetext", `entry ${seq} of ${last}`);
    replace(this._ui.where, this._seq === null ? `entry ${last} of ${last}: now` : `entry ${seq} of ${last}`);
    // Only what changed is built anew: an open entry stays open, a selection stays.
    const past = `${seq} ${last} ${this._whole}`;
    if (past !== this._pastShown) {
      this._pastShown = past;
      const value = asOf(entries, seq);
      replace(this._ui.past, ...pastPanel({
        value, entries, whole: this._whole, origin, last: seq === last, mayFork: this._context.may("chat"),
        fork: (upto) => this._forkAt(upto), back: () => this._goTo(null),
      }));
    }
    const span = this._chosen;
    const shown = span ? `${span.id} ${span.until} ${span.words} ${span.seqs.length} ${span.seqs.at(-1)}` : "";
    if (span && shown !== this._spanShown) {
      this._spanShown = shown;
      replace(this._ui.span, ...spanPanel({ span, entries: this._model.entriesOf(span), chatId: this._chatId, origin, now, at: this._linked }));
    }
  }

  _fillTable() {
    if (!(/** @type {HTMLDetailsElement} */ (this._ui.table).open)) return;
    const picture = this._model.picture(this._now());
    const spans = picture.spans.slice(-TABLE_MAX);
    const rest = picture.spans.length - spans.length;
    replace(this._ui.table, h("summary", {}, "All of it as a table"),
      ...(rest > 0 ? [h("p", { class: "muted" }, `${rest} earlier spans are left out.`)] : []),
      h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Table of all spans" }, spanTable(spans, picture.from, this._now(), (span) => this._choose(span, true))));
  }

  // --- what a person does --------------------------------------------------------------------------------------------

  _choose(/** @type {Span} */ span, /** @type {boolean} */ opens) {
    this._chosen = span;
    this._picked = true;
    this._drawing.reveal(span);
    this._draw();
    if (opens) this._ui.span.focus();
  }

  _goTo(/** @type {number | null} */ seq) {
    const last = this._model.entries.at(-1)?.seq ?? 0;
    this._seq = seq === null || seq >= last ? null : seq;
    this._draw();
  }

  _slide() {
    this._goTo(Number(this._ui.range.value));
  }

  /** To the last entry that was there at that instant. */
  _travelTo(/** @type {number} */ at) {
    const { entries } = this._model;
    this._goTo((entries.filter((entry) => entry.at <= at).at(-1) ?? entries[0])?.seq ?? null);
  }

  _zoom(/** @type {number} */ factor) {
    this._drawing.zoom(factor, this._chosen?.from ?? null);
    this._draw();
  }

  _fit() {
    this._drawing.window = null;
    this._draw();
  }

  _setFold(/** @type {boolean} */ fold) {
    this._fold = fold;
    this._fit();
  }

  async _askWhy() {
    try {
      const why = await this._chat.why({ signal: this._leaving.signal });
      this._ui.why.removeAttribute("hidden");
      replace(this._ui.why, ...whyPanel(why, this._now()));
    } catch (error) {
      this._context.say(`It could not be asked: ${error instanceof Error ? error.message : error}`, { bad: true });
    }
  }

  async _forkAt(/** @type {number} */ upto) {
    try {
      const fork = await this._chat.fork({ upto, signal: this._leaving.signal });
      this._context.say("Forked: a new chat with what there was then.");
      this._context.go(`#/chats/${encodeURIComponent(fork.id)}`);
    } catch (error) {
      this._context.say(`It could not be forked: ${error instanceof Error ? error.message : error}`, { bad: true });
    }
  }
}

const plural = (/** @type {number} */ n, /** @type {string} */ one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

function legend() {
  const kinds = [["attempt", "model"], ["call", "tool"], ["approval", "waits for people"], ["retry", "pause"], ["gap", "no worker"], ["lost", "lost with its worker"], ["unknown", "outcome unknown"]];
  return h("ul", { class: "legend", "aria-label": "Colours" }, ...kinds.map(([kind, words]) => h("li", {}, h("span", { class: `swatch is-${kind}` }), words ?? "")));
}
