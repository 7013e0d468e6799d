/** Looks again and again, while somebody looks at the page. */

const SLOWEST_MS = 30_000;

/**
 * Looks now, then every `ms` while the page is visible; at once when it is shown again. Where looking fails, it looks less often.
 * Returns a function that looks at once.
 * @param {number} ms
 * @param {() => Promise<unknown>} look
 * @param {AbortSignal} signal
 */
export function poll(ms, look, signal) {
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
    } else if (!document.hidden) timer = setTimeout(now, Math.min(ms * 2 ** failures, Math.max(ms, SLOWEST_MS)));
  }

  document.addEventListener("visibilitychange", () => document.hidden || void now(), { signal });
  addEventListener("online", () => void now(), { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  void now();
  return () => void now();
}
