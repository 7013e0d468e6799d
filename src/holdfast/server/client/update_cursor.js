/**
 * An update's cursor: the server's place in the journal, and what a reader was shown beyond that. The same as
 * `core/update_cursor.py`, so that a reader may leave in one language and go on in another.
 */

import { WrongCursor } from "./errors.js";
import { NOTHING_SHOWN } from "./shown_words.js";

/** @typedef {import("./shown_words.js").Shown} Shown */
/**
 * @typedef {object} Mark
 * @property {number} turn the number of the line that began the turn; 0: none did
 * @property {number} told updates of the line after the place that were told, those of text not counted
 * @property {Shown} text
 * @property {Shown} reasoning
 * @property {[number, number]} drafts an attempt, and how many of the calls that it writes were told
 */

const BETWEEN = "~"; // the server's part and the mark

/** @type {Mark} */
export const NO_MARK = { turn: 0, told: 0, text: NOTHING_SHOWN, reasoning: NOTHING_SHOWN, drafts: [0, 0] };

/** As MessagePack writes it. @returns {number[]} */
function integer(/** @type {number} */ value) {
  if (value < 0x80) return [value];
  for (const [head, size] of [[0xcc, 1], [0xcd, 2], [0xce, 4], [0xcf, 8]]) {
    if (value < 2 ** (8 * size)) return [head, ...bytesOf(value, size)];
  }
  throw new RangeError(`${value} is too large for a cursor`);
}

function bytesOf(/** @type {number} */ value, /** @type {number} */ size) {
  return Array.from({ length: size }, (_, n) => Math.floor(value / 2 ** (8 * (size - 1 - n))) % 0x100);
}

function bytes(/** @type {number[]} */ value) {
  return [0xc4, value.length, ...value];
}

/** One opaque text. */
export function cursorOf(/** @type {string} */ place, /** @type {Mark} */ mark) {
  const plain = [
    0x98, ...integer(mark.turn), ...integer(mark.told),
    ...integer(mark.text.chars), ...bytes(mark.text.digest()),
    ...integer(mark.reasoning.chars), ...bytes(mark.reasoning.digest()),
    ...integer(mark.drafts[0]), ...integer(mark.drafts[1]),
  ];
  const base64 = btoa(String.fromCharCode(...plain));
  return `${place}${BETWEEN}${base64.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}

/**
 * The server's part, and the mark; null: it is not an update's, but an event's.
 * @returns {{ place: string, mark: Mark | null }}
 */
export function parseCursor(/** @type {string} */ cursor) {
  const at = cursor.indexOf(BETWEEN);
  if (at < 0) return { place: cursor, mark: null };
  try {
    const reader = new Reader(cursor.slice(at + 1));
    if (reader.byte() !== 0x98) throw new Error("no mark");
    const turn = reader.integer();
    const told = reader.integer();
    const text = reader.shown();
    const reasoning = reader.shown();
    return { place: cursor.slice(0, at), mark: { turn, told, text, reasoning, drafts: [reader.integer(), reader.integer()] } };
  } catch (error) {
    throw new WrongCursor(`${cursor.slice(0, 160)} is not one; use that of an update, or begin anew`, { cause: error });
  }
}

class Reader {
  constructor(/** @type {string} */ base64) {
    const plain = atob(base64.replaceAll("-", "+").replaceAll("_", "/"));
    this._bytes = Array.from(plain, (char) => char.charCodeAt(0));
    this._at = 0;
  }

  byte() {
    if (this._at >= this._bytes.length) throw new Error("too short");
    return this._bytes[this._at++];
  }

  integer() {
    const head = this.byte();
    if (head < 0x80) return head;
    if (head < 0xcc || head > 0xcf) throw new Error("no number");
    let value = 0;
    for (let n = 0; n < 2 ** (head - 0xcc); n++) value = value * 0x100 + this.byte();
    return value;
  }

  /** @returns {Shown} */
  shown() {
    const chars = this.integer();
    if (this.byte() !== 0xc4) throw new Error("no digest");
    const digest = Array.from({ length: this.byte() }, () => this.byte());
    return { chars, digest: () => digest };
  }
}
