/**
 * BLAKE2b (RFC 7693) with digests of six bytes, as the cursors of updates carry them. Browsers have no such digest, and
 * those that they have do not answer at once. A word of 64 bits is two of 32 here, the low one first.
 */

const BYTES = 6;
const BLOCK = 128;

const IV = new Uint32Array([
  0xf3bcc908, 0x6a09e667, 0x84caa73b, 0xbb67ae85, 0xfe94f82b, 0x3c6ef372, 0x5f1d36f1, 0xa54ff53a,
  0xade682d1, 0x510e527f, 0x2b3e6c1f, 0x9b05688c, 0xfb41bd6b, 0x1f83d9ab, 0x137e2179, 0x5be0cd19,
]);

// Which words of the block each round takes, in hexadecimal digits; the last two rounds are the first two again.
const ORDER = [
  "0123456789abcdef", "ea489fd61c02b753",
  "b8c052fdae367194", "7931dcbe265a40f8",
  "905724afe1bc683d", "2c6a0b834d75fe19",
  "c51fed4a0763928b", "db7ec13950f4862a",
  "6fe9b308c2d714a5", "a2847615fb9e3cd0",
].map((row) => Array.from(row, (digit) => parseInt(digit, 16)));

const v = new Uint32Array(32);
const m = new Uint32Array(32);
const text = new TextEncoder();

/** v[a] += v[b] + the word of the block, of which the halves are given. */
function add(/** @type {number} */ a, /** @type {number} */ b, low = 0, high = 0) {
  const sum = v[2 * a] + v[2 * b] + low;
  v[2 * a + 1] += v[2 * b + 1] + high + Math.floor(sum / 0x100000000);
  v[2 * a] = sum;
}

/** v[d] = (v[d] ^ v[a]) rotated right. */
function turn(/** @type {number} */ d, /** @type {number} */ a, /** @type {number} */ bits) {
  const low = v[2 * d] ^ v[2 * a];
  const high = v[2 * d + 1] ^ v[2 * a + 1];
  if (bits === 32) {
    v[2 * d] = high;
    v[2 * d + 1] = low;
  } else if (bits === 63) {
    v[2 * d] = (low << 1) | (high >>> 31);
    v[2 * d + 1] = (high << 1) | (low >>> 31);
  } else {
    v[2 * d] = (low >>> bits) | (high << (32 - bits));
    v[2 * d + 1] = (high >>> bits) | (low << (32 - bits));
  }
}

function mix(
  /** @type {number} */ a, /** @type {number} */ b, /** @type {number} */ c, /** @type {number} */ d,
  /** @type {number} */ x, /** @type {number} */ y,
) {
  add(a, b, m[2 * x], m[2 * x + 1]);
  turn(d, a, 32);
  add(c, d);
  turn(b, c, 24);
  add(a, b, m[2 * y], m[2 * y + 1]);
  turn(d, a, 16);
  add(c, d);
  turn(b, c, 63);
}

/** The digest of a text that grows. A copy goes on by itself. */
export class Digest {
  constructor(text = "") {
    this._state = IV.slice();
    this._state[0] ^= 0x01010000 ^ BYTES;
    this._block = new Uint8Array(BLOCK);
    this._filled = 0;
    this._length = 0;
    if (text) this.update(text);
  }

  copy() {
    const made = new Digest();
    made._state.set(this._state);
    made._block.set(this._block);
    made._filled = this._filled;
    made._length = this._length;
    return made;
  }

  update(/** @type {string} */ piece) {
    for (const byte of text.encode(piece)) {
      if (this._filled === BLOCK) {
        this._compress(false);
        this._filled = 0;
      }
      this._block[this._filled++] = byte;
      this._length += 1;
    }
  }

  /** Of what it was given so far; it can be given more. */
  bytes() {
    const last = this.copy();
    last._block.fill(0, last._filled);
    last._compress(true);
    return Array.from({ length: BYTES }, (_, n) => (last._state[n >> 2] >>> (8 * (n & 3))) & 0xff);
  }

  _compress(/** @type {boolean} */ last) {
    const view = new DataView(this._block.buffer);
    for (let n = 0; n < 32; n++) m[n] = view.getUint32(4 * n, true);
    v.set(this._state);
    v.set(IV, 16);
    v[24] ^= this._length;
    v[25] ^= Math.floor(this._length / 0x100000000);
    if (last) {
      v[28] = ~v[28];
      v[29] = ~v[29];
    }
    for (let round = 0; round < 12; round++) {
      const s = ORDER[round % 10];
      for (let n = 0; n < 4; n++) mix(n, n + 4, n + 8, n + 12, s[2 * n], s[2 * n + 1]);
      for (let n = 0; n < 4; n++) mix(n, 4 + ((n + 1) & 3), 8 + ((n + 2) & 3), 12 + ((n + 3) & 3), s[8 + 2 * n], s[9 + 2 * n]);
    }
    for (let n = 0; n < 16; n++) this._state[n] ^= v[n] ^ v[n + 16];
  }
}
