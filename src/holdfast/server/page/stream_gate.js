/**
 * Which of a browser's tabs has a connection for its stream. Over HTTP/1.1 a browser gives one server six connections, for all of
 * its tabs and windows. A tab that nobody looks at lets its stream go, and comes back by its cursor when it is shown. Those that
 * are seen, each in a window of its own, have four between them, and take turns where there are more: two connections are always
 * free for everything else.
 */

/** @typedef {import("../client/holdfast.js").Pass} Pass */

const SLOTS = 4;
const SLOT = "holdfast.stream."; // before its number: a lock of the browser, which all tabs of this server share
const TURN_MS = 3000; // after which a stream makes way for one that waits
const CROWDED_MS = 400; // of waiting, after which it is told

export class StreamGate {
  /** `oncrowded` is told when this page has to wait for others, and when it does not any more. */
  constructor(/** @type {(crowded: boolean) => void} */ oncrowded) {
    this._oncrowded = oncrowded;
    this._frozen = false;
    document.addEventListener("freeze", () => { this._frozen = true; });
    document.addEventListener("resume", () => { this._frozen = false; });
  }

  /** Until somebody looks at this page, and a connection is free. @returns {Promise<Pass>} */
  async enter(/** @type {AbortSignal | undefined} */ signal) {
    for (;;) {
      await this._shown(signal);
      const leaving = new AbortController(); // ended when this page is left, or not looked at any more
      const leave = () => leaving.abort(signal?.reason);
      signal?.addEventListener("abort", leave, { once: true });
      if (signal?.aborted) leave();
      this._whenUnseen(leave, leaving.signal);
      const release = await this._slot(leaving.signal).catch(() => null);
      if (release) return this._pass(leaving, () => {
        signal?.removeEventListener("abort", leave);
        release();
      });
      signal?.removeEventListener("abort", leave);
      signal?.throwIfAborted();
    }
  }

  /** @returns {Pass} */
  _pass(/** @type {AbortController} */ leaving, /** @type {() => void} */ release) {
    const timer = setInterval(async () => {
      const waiting = await someoneWaits();
      if (waiting) leaving.abort();
      else this._oncrowded(false);
    }, TURN_MS);
    return {
      signal: leaving.signal,
      leave: () => {
        clearInterval(timer);
        leaving.abort();
        release();
      },
    };
  }

  _seen() {
    return !document.hidden && !this._frozen;
  }

  _shown(/** @type {AbortSignal | undefined} */ signal) {
    if (this._seen()) return Promise.resolve();
    return new Promise((resolve, reject) => {
      const over = new AbortController();
      const look = () => {
        if (!signal?.aborted && !this._seen()) return;
        over.abort();
        if (signal?.aborted) reject(signal.reason);
        else resolve(undefined);
      };
      for (const event of ["visibilitychange", "resume"]) document.addEventListener(event, look, { signal: over.signal });
      signal?.addEventListener("abort", look, { signal: over.signal });
      look();
    });
  }

  _whenUnseen(/** @type {() => void} */ run, /** @type {AbortSignal} */ signal) {
    const look = () => this._seen() || run();
    for (const event of ["visibilitychange", "freeze"]) document.addEventListener(event, look, { signal });
  }

  /** One of the locks, the first that is free. Resolves to what gives it back. @returns {Promise<() => void>} */
  _slot(/** @type {AbortSignal} */ signal) {
    if (signal.aborted) return Promise.reject(signal.reason);
    if (!isScarce()) return Promise.resolve(() => {});
    return new Promise((resolve, reject) => {
      const others = new AbortController();
      const told = setTimeout(async () => {
        if (await allAreTaken() && !others.signal.aborted) this._oncrowded(true); // else the browser is slow, and nobody is in the way
      }, CROWDED_MS);
      const end = () => {
        clearTimeout(told);
        others.abort();
      };
      signal.addEventListener("abort", () => {
        end();
        reject(signal.reason);
      }, { signal: others.signal });
      const take = () => {
        if (others.signal.aborted) return undefined; // another one came first: this one is given back at once
        end();
        return new Promise((/** @type {(value: void) => void} */ release) => resolve(release));
      };
      for (let n = 0; n < SLOTS; n++) void navigator.locks.request(SLOT + n, { signal: others.signal }, take).catch(() => {});
    });
  }
}

/**
 * Whether streams have to share. Over HTTP/2 they have one connection in common. Without locks, which a browser gives to pages of
 * HTTPS and of this machine alone, pages do not know of each other.
 */
function isScarce() {
  const [loaded] = /** @type {PerformanceNavigationTiming[]} */ (performance.getEntriesByType("navigation"));
  return navigator.locks !== undefined && !/^h[23]/.test(loaded?.nextHopProtocol ?? "");
}

async function allAreTaken() {
  const { held = [] } = await navigator.locks.query();
  return held.filter(({ name }) => name?.startsWith(SLOT)).length >= SLOTS;
}

async function someoneWaits() {
  if (!isScarce()) return false;
  const { pending = [] } = await navigator.locks.query();
  return pending.some(({ name }) => name?.startsWith(SLOT));
}
