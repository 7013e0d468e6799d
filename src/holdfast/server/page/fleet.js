/** What the figures of the runtime mean: codes of health as words, sums over the workers of a server. Pure. */

/** @typedef {Record<string, any>} Figures */
/** @typedef {{ name: string, ok: boolean, words: string }} Check */

/** @type {Record<string, string>} */
const REASONS = {
  loop_stalled: "its event loop stands still: a tool or a hook blocks it",
  lease_not_trusted: "its lease may have run out: it starts nothing until it is renewed",
  store_unavailable: "the database does not answer",
  store_gone: "the database file was deleted or replaced",
  no_writes: "nothing can be written",
  guard_down: "the process that ends what a dead worker left is not there",
  hooks_suspended: "a hook hung too often and is not asked any more",
  threads_abandoned: "a tool that could not be ended keeps a thread",
  tools_overdue: "a tool runs beyond its deadline",
  store_failing: "the database fails",
  mcp_server_away: "a tool server is away",
  mcp_server_needs_login: "a tool server wants a person to log in: holdfast mcp login",
  steps_missed: "a chat's steps come to nothing",
  tools_uncovered: "tools run without the cover that the settings ask for",
  scheduler_silent: "schedules are not looked at",
  chats_unreadable: "newer code wrote chats that this one cannot read",
  processes_missing: "of its processes fewer can work than there should be",
  process_silent: "one of its processes gives no answer",
  wake_stream_down: "it hears of changes by polling alone",
  writes_failing: "writes fail",
  wal_in_doubt: "the write-ahead log is in doubt",
  wal_over_bound: "the write-ahead log has outgrown its bound",
  went_back: "the database went back to an older state",
  failed_over: "the database failed over",
};

export function reasonWords(/** @type {string} */ code) {
  return REASONS[code] ?? code.replaceAll("_", " ");
}

/** The workers of the server that answered, of all its processes. @returns {Figures[]} */
export function workersOf(/** @type {Figures} */ diagnosis) {
  return (diagnosis.apps ?? []).flatMap((/** @type {Figures} */ app) => app.workers ?? []);
}

/** A counter of all of them, by its name; null: no worker is there. */
export function sumOf(/** @type {Figures[]} */ workers, /** @type {(worker: Figures) => number} */ of) {
  return workers.length ? workers.reduce((sum, worker) => sum + (of(worker) || 0), 0) : null;
}

/** All that was counted under a name of `outcomes`, whatever its labels. */
export function counted(/** @type {Figures} */ worker, /** @type {string} */ name) {
  return (worker.outcomes?.[name]?.counts ?? []).reduce((/** @type {number} */ sum, /** @type {any[]} */ row) => sum + Number(row.at(-1)), 0);
}

/** What `holdfast doctor` looks at as far as the figures tell it: whether a chat is stuck, and whether what keeps chats alive is there. @returns {Check[]} */
export function checksOf(/** @type {Figures} */ diagnosis) {
  const workers = workersOf(diagnosis);
  const stores = (diagnosis.apps ?? []).map((/** @type {Figures} */ app) => app.store ?? {});
  const sum = (/** @type {string} */ name) => sumOf(workers, (worker) => worker[name]) ?? 0;
  const some = (/** @type {number} */ n, /** @type {string} */ none, /** @type {string} */ words) => ({ ok: n === 0, words: n === 0 ? none : `${n} ${words}` });
  const repairs = workers.flatMap((worker) => Object.entries(worker.repairs ?? {}));
  const overdue = workers.flatMap((worker) => worker.tools_running ?? []).filter((tool) => tool.age_s > tool.deadline_s).length;
  const failing = diagnosis.diagnostics?.writes_failing_s ?? 0;
  return [
    { name: "Every chat is driven", ...some(sum("strays"), "none is held and not driven", "held by a worker that does not drive them") },
    { name: "No chat is poison", ...some(sum("poison_chats"), "none took its workers with it", "given up after they took five workers with them") },
    { name: "Nothing had to be mended", ...some(repairs.reduce((all, [, n]) => all + Number(n), 0), "the sweeper found every chat in order",
      `mended: ${repairs.map(([reason]) => reason.replaceAll("_", " ")).join(", ")}`) },
    { name: "Steps are committed", ...some(sum("steps_missed_in_a_row"), "none was missed", "missed in a row") },
    { name: "Tools end in time", ...some(overdue, "none is beyond its deadline", "beyond their deadline") },
    { name: "Every chat can be read", ...some(stores.reduce((/** @type {number} */ n, /** @type {Figures} */ store) => n + (store.unreadable_chats ?? 0), 0),
      "none was written by newer code", "written by newer code") },
    { name: "Writes are durable", ok: failing === 0, words: failing === 0 ? "the last one was proved" : `failing for ${failing} s` },
  ];
}
