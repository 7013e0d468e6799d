/**
 * The words of one response, as a reader was shown them and as they turn out: what to take back, what to add. The same as
 * `core/shown_words.py`. Characters are code points, as in cursors: a reader may go on in another process.
 */

import { Digest } from "./digest.js";

/** @typedef {{ chars: number, digest: () => number[] }} Shown */
/** @typedef {{ dropped: number, rest: string, met: boolean }} Heard */

/** @type {Shown} */
export const NOTHING_SHOWN = { chars: 0, digest: () => [] };

/** @type {Heard} */
export const NOTHING_HEARD = { dropped: 0, rest: "", met: false };

const PAIRS = /[\ud800-\udfff]/;

/** How many characters a text has. */
export function charsOf(/** @type {string} */ text) {
  if (!PAIRS.test(text)) return text.length;
  let count = 0;
  for (const _ of text) count += 1;
  return count;
}

/** Where in a text its first so many characters end. */
export function indexOf(/** @type {string} */ text, /** @type {number} */ chars) {
  if (chars <= 0) return 0;
  if (!PAIRS.test(text)) return Math.min(chars, text.length);
  let index = 0;
  for (let n = 0; n < chars && index < text.length; n++) index += (text.codePointAt(index) ?? 0) > 0xffff ? 2 : 1;
  return index;
}

/** A text without its last so many characters: what a page does that is told `Restarted`. */
export function takeBack(/** @type {string} */ text, /** @type {number} */ chars) {
  return text.slice(0, indexOf(text, charsOf(text) - chars));
}

/** The index up to which they are alike, never within a character. */
function common(/** @type {string} */ one, /** @type {string} */ other) {
  const most = Math.min(one.length, other.length);
  let same = 0;
  while (same < most && one.charCodeAt(same) === other.charCodeAt(same)) same += 1;
  const code = same ? one.charCodeAt(same - 1) : 0;
  const half = code >= 0xd800 && code <= 0xdbff && same < Math.max(one.length, other.length);
  return half ? same - 1 : same;
}

function equal(/** @type {number[]} */ one, /** @type {number[]} */ other) {
  return one.length === other.length && one.every((byte, n) => byte === other[n]);
}

/**
 * The text of a turn, or its reasoning: what was committed, what a reader was shown behind it, and how far the present
 * attempt has come in saying the same. What is to be added is added by the caller, by `add`.
 */
export class ShownWords {
  constructor() {
    this.all = ""; // of the turn
    this.committed = 0; // the index behind what is committed of it
    this._chars = 0; // shown behind that
    this._hash = new Digest(); // of that
    /** @type {Shown | null} what was shown by another process, whatever it is */
    this._unseen = null;
    this._heard = ""; // while there is such: what the attempt said so far
    this._heardChars = 0;
    this._old = ""; // while the attempt repeats what is shown: that
    this._said = 0; // how far it has said that
  }

  /** @returns {Shown} */
  get shown() {
    if (this._unseen !== null) return this._unseen;
    if (!this._chars) return NOTHING_SHOWN;
    const hash = this._hash.copy();
    return { chars: this._chars, digest: () => hash.bytes() };
  }

  /** Another process has shown this of the response that comes. */
  resume(/** @type {Shown} */ shown) {
    this._unseen = shown.chars ? shown : null;
  }

  /** What is shown stays until this attempt says something else. */
  beginAttempt() {
    this._forgetHeard();
    this._old = this.all.slice(this.committed);
  }

  /** The attempt goes on with this piece. @returns {Heard} */
  hear(/** @type {string} */ piece) {
    if (this._unseen !== null) {
      this._heard += piece;
      this._heardChars += charsOf(piece);
      return this._heardChars >= this._unseen.chars ? this._meet(this._heard) : NOTHING_HEARD;
    }
    const same = this._old ? common(piece, this._old.slice(this._said, this._said + piece.length)) : 0;
    this._said += same;
    if (same === piece.length) return NOTHING_HEARD;
    const dropped = this._drop(this._old.length - this._said);
    this._old = "";
    this._said = 0;
    return { dropped, rest: piece.slice(same), met: false };
  }

  /** This is what the response came to. `end` follows. @returns {Heard} */
  hearAll(/** @type {string} */ text) {
    if (this._unseen !== null) return this._meet(text);
    const shown = this.all.slice(this.committed);
    const same = common(text, shown);
    return { dropped: this._drop(shown.length - same), rest: text.slice(same), met: false };
  }

  add(/** @type {string} */ piece) {
    if (!piece) return;
    this.all += piece;
    this._chars += charsOf(piece);
    this._hash.update(piece);
  }

  /** What is shown is committed; what comes next is another response's. */
  end() {
    this.committed = this.all.length;
    this._chars = 0;
    this._hash = new Digest();
    this._unseen = null;
    this._forgetHeard();
  }

  /** What is said now is, or is not, what another process has shown, and more. @returns {Heard} */
  _meet(/** @type {string} */ text) {
    const unseen = /** @type {Shown} */ (this._unseen);
    this._unseen = null;
    this._forgetHeard();
    const index = indexOf(text, unseen.chars);
    if (charsOf(text) >= unseen.chars && equal(new Digest(text.slice(0, index)).bytes(), unseen.digest())) {
      this.add(text.slice(0, index));
      return { dropped: 0, rest: text.slice(index), met: true };
    }
    return { dropped: unseen.chars, rest: text, met: false };
  }

  _forgetHeard() {
    this._heard = "";
    this._heardChars = 0;
    this._old = "";
    this._said = 0;
  }

  /** Takes the end of it back; says how many characters that were. */
  _drop(/** @type {number} */ length) {
    if (length <= 0) return 0;
    const index = this.all.length - length;
    const dropped = charsOf(this.all.slice(index));
    this.all = this.all.slice(0, index);
    this._chars -= dropped;
    this._hash = new Digest(this.all.slice(this.committed));
    return dropped;
  }
}
