/** Looks again and again, while somebody looks at the page; where it is asked to, also when nobody does, seldom. */

const SLOWEST_MS = 30_000;

/**
 * Looks now, then every `ms` while the page is visible, and every `hiddenMs`, if given, while it is not; at once when it is shown
 * again. Where looking fails, it looks less often, or every `failedMs`.
 * Returns a function that looks at once.
 * @param {number} ms
 * @param {() => Promise<unknown>} look
 * @param {AbortSignal} signal
 * @param {{ hiddenMs?: number, failedMs?: number }} [options]
 */
export function poll(ms, look, signal, { hiddenMs, failedMs } = {}) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let failures = 0;
  let busy = false;
  let again = false;

  async function now() {
    clearTimeout(timer);
    if (signal.aborted) return;
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      await look();
      failures = 0;
    } catch {
      failures += 1; // what failed was shown by whoever looked
    }
    busy = false;
    if (signal.aborted) return;
    if (again) {
      again = false;
      void now();
      return;
    }
    const next = document.hidden ? hiddenMs : failures && failedMs ? failedMs : Math.min(ms * 2 ** failures, Math.max(ms, SLOWEST_MS));
    if (next !== undefined) timer = setTimeout(now, next);
  }

  document.addEventListener("visibilitychange", () => document.hidden || void now(), { signal });
  addEventListener("online", () => void now(), { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  void now();
  return () => void now();
}
