/** How the fleet goes, for operators: health with its reasons, workers and leases, running tools, stuck chats, spending. */

import { meter, Rate, Spark } from "./charts.js";
import { h, replace } from "./dom.js";
import { checksOf, counted, reasonWords, sumOf, workersOf } from "./fleet.js";
import { poll } from "./poll.js";
import { link } from "./router.js";
import { ago, clock, count, duration, money, plain } from "./words.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("../client/holdfast.js").Schemas} Schemas */
/** @typedef {import("./fleet.js").Figures} Figures */

const LOOK_MS = 2000;
const SPENDING_MS = 10_000;
const FAILED_SHOWN = 8;
const OWNERS_SHOWN = 12;
/** @type {Record<string, [string, string]>} */
const STATUS = { ok: ["All is well", "ok"], degraded: ["Degraded", "warn"], draining: ["Being replaced", "info"], unhealthy: ["Unhealthy", "bad"] };

export function show(/** @type {Context} */ context) {
  const element = context.me.operates ? new Operations(context).element : notForYou();
  return { title: "Operations", element, close: () => {} };
}

function notForYou() {
  return h("div", { class: "view" }, h("h1", null, "Operations"), h("div", { class: "empty" }, h("h2", null, "For operators"),
    h("p", null, "Workers, health and spending are told to a token without an owner that has the scope "), h("p", null, h("code", null, "operate")),
    h("p", null, "Your own chats are all in the list.")));
}

class Operations {
  constructor(/** @type {Context} */ context) {
    this._context = context;
    this._status = h("div", { class: "row", "aria-live": "polite" }, h("span", { class: "chip" }, "looking…"));
    this._reasons = h("div", null);
    this._workers = h("div", { class: "scroll-x" }, h("p", { class: "muted" }, "Looking…"));
    this._tools = h("div", { class: "scroll-x" });
    this._checks = h("ul", { class: "checks" });
    this._failed = h("div", null);
    this._spending = h("div", { class: "scroll-x" });
    this._sparks = {
      turns: new Spark("Throughput", "commits/s", tenths),
      lag: new Spark("Loop lag", "ms", (value) => String(Math.round(value)), { tone: "info", least: 50 }),
      retries: new Spark("Failed attempts", "per minute", tenths, { tone: "warn", least: 5 }),
      tokens: new Spark("Spending", "tokens/min", (value) => count(Math.round(value)), { tone: "info", least: 100 }),
    };
    this._rates = { turns: new Rate(), retries: new Rate(), tokens: new Rate() };
    this.element = h("div", { class: "view wide" },
      h("header", { class: "view-head" },
        h("div", { class: "row" }, h("a", { class: "button quiet menu-button", href: "#/" }, "Menu"), h("h1", null, "Operations"), this._status),
        h("a", { href: link("schedules") }, "Schedules")),
      h("div", { class: "panels" }, this._reasons,
      h("section", { class: "sparks", "aria-label": "As it goes, while this page looks" }, Object.values(this._sparks).map((spark) => spark.element)),
      section("Workers", this._workers),
      section("Running tools", this._tools),
      h("div", { class: "columns" }, section("Stuck-chat check", this._checks),
        h("div", { class: "panels" }, section("Failed chats", this._failed), section("Spending today", this._spending)))));
    poll(LOOK_MS, () => this._look(), context.signal);
    poll(SPENDING_MS, () => this._lookAtChats(), context.signal);
  }

  async _look() {
    const { client, signal } = this._context;
    try {
      const [diagnosis, workers] = await Promise.all([client.diagnostics({ signal }), client.workers({ signal })]);
      this._show(/** @type {Figures} */ (diagnosis), workers);
    } catch (error) {
      if (signal.aborted) return;
      replace(this._status, h("span", { class: "chip bad" }, "no answer"), h("span", { class: "muted small" }, "The figures below are the last ones."));
      throw error;
    }
  }

  _show(/** @type {Figures} */ diagnosis, /** @type {Schemas["WorkerShown"][]} */ leases) {
    const own = workersOf(diagnosis);
    this._showStatus(diagnosis);
    this._showSparks(own, leases);
    this._showWorkers(leases, new Map(own.map((worker) => [String(worker.worker), worker])));
    this._showTools(own);
    replace(this._checks, checksOf(diagnosis).map(({ name, ok, words }) => h("li", null,
      h("span", { class: `check ${ok ? "ok" : "bad"}` }, h("span", { "aria-hidden": "true" }, ok ? "✓" : "!"), h("span", { class: "sr" }, ok ? "in order:" : "not in order:")),
      h("span", null, h("b", null, name), h("br"), h("span", { class: "muted small" }, words)))));
  }

  _showStatus(/** @type {Figures} */ diagnosis) {
    const [words, tone] = STATUS[diagnosis.status] ?? [diagnosis.status, ""];
    const up = diagnosis.diagnostics?.uptime_s;
    replace(this._status, h("span", { class: `chip ${tone}` }, h("span", { class: "dot" }), words),
      h("span", { class: "muted small" }, `version ${plain(diagnosis.version)}${up ? `, up for ${duration(up * 1000)}` : ""}`));
    const reasons = diagnosis.reasons ?? [];
    replace(this._reasons, reasons.length ? h("div", { class: `notice ${tone === "bad" ? "bad" : "warn"} reasons`, role: "status" },
      h("ul", null, reasons.map((/** @type {string} */ code) => h("li", null, h("b", null, plain(reasonWords(code))), " ", h("code", { class: "muted" }, plain(code)))))) : null);
  }

  /** Of the whole fleet where leases tell it; attempts and tokens are those of the server that answered. */
  _showSparks(/** @type {Figures[]} */ own, /** @type {Schemas["WorkerShown"][]} */ leases) {
    const now = Date.now();
    const live = leases.filter((lease) => !lease.lease_ended);
    const commits = own.length ? sumOf(own, (worker) => worker.commits) : sumOf(live.map((lease) => lease.info), (info) => info.commits);
    const lags = own.length ? own.map((worker) => worker.loop_lag_ms) : live.map((lease) => lease.info.loop_lag_ms);
    this._sparks.turns.add(this._rates.turns.at(commits, now));
    this._sparks.lag.add(lags.length ? Math.max(...lags.map((lag) => Number(lag) || 0)) : null);
    const minute = (/** @type {number | null} */ rate) => (rate === null ? null : rate * 60);
    this._sparks.retries.add(minute(this._rates.retries.at(sumOf(own, (worker) => counted(worker, "attempts_failed")), now)));
    this._sparks.tokens.add(minute(this._rates.tokens.at(sumOf(own, (worker) => counted(worker, "tokens")), now)));
  }

  _showWorkers(/** @type {Schemas["WorkerShown"][]} */ leases, /** @type {Map<string, Figures>} */ own) {
    const live = leases.filter((lease) => !lease.lease_ended);
    const notice = live.length ? null : h("div", { class: "notice warn", role: "status" }, h("b", null, "No worker. "),
      "Chats wait until one comes, and nothing of them is lost. Start one: ", h("code", null, "holdfast worker"));
    if (!leases.length) return void replace(this._workers, notice);
    replace(this._workers, notice, table(["worker", "state", "chats", "loop lag", "lease", "started"],
      leases.map((lease) => this._worker(lease, own.get(lease.id)))));
  }

  _worker(/** @type {Schemas["WorkerShown"]} */ lease, /** @type {Figures | undefined} */ own) {
    const info = /** @type {Figures} */ (lease.info);
    const silent = Date.now() - lease.lease_renewed_at;
    const draining = own?.draining ?? info.draining;
    const [words, tone] = lease.lease_ended ? [ENDED[lease.lease_ended] ?? lease.lease_ended, lease.lease_ended === "retired" ? "" : "bad"]
      : silent > lease.lease_ttl_ms / 2 ? [`silent for ${duration(silent)}`, "warn"] : draining ? ["leaving", "info"] : ["at work", "ok"];
    const chats = own?.chats ?? info.chats ?? 0;
    const lag = own?.loop_lag_ms ?? info.loop_lag_ms;
    const most = own?.chats_max ?? info.chats_max ?? 0;
    return [
      h("span", null, h("b", { class: "break" }, `${plain(String(info.hostname ?? ""))}:${lease.pid}`), h("br"),
        h("span", { class: "muted small mono", title: lease.id }, `…${plain(lease.id).slice(-8)}`), own ? h("span", { class: "muted small" }, " this server") : null),
      h("span", { class: `chip ${tone}` }, h("span", { class: "dot" }), words),
      h("span", { class: "row nowrap" }, `${chats} of ${most}`, meter(chats, most, `${chats} of ${most} chats`)),
      lag === undefined || lag === null ? "–" : `${Math.round(lag)} ms`,
      lease.lease_ended ? "–" : h("span", { class: "row nowrap" }, `${duration(Math.max(0, lease.lease_ttl_ms - silent))} left`,
        meter(silent, lease.lease_ttl_ms, `heard of ${ago(lease.lease_renewed_at)}`)),
      h("span", { title: clock(lease.started_at) }, ago(lease.started_at)),
    ];
  }

  _showTools(/** @type {Figures[]} */ own) {
    const tools = own.flatMap((worker) => worker.tools_running ?? []);
    replace(this._tools, tools.length ? table(["tool", "chat", "elapsed", "deadline"], tools.slice(0, 50).map((tool) => [
      h("code", null, plain(String(tool.tool))),
      tool.chat_id ? h("a", { href: link("chats", String(tool.chat_id)), class: "mono small" }, `…${plain(String(tool.chat_id)).slice(-8)}`) : "–",
      duration(tool.age_s * 1000),
      h("span", { class: "row nowrap" }, duration(tool.deadline_s * 1000), meter(tool.age_s, tool.deadline_s, `${Math.round((100 * tool.age_s) / tool.deadline_s)} % of its time`)),
    ])) : h("p", { class: "muted" }, "None in this server's workers."));
  }

  async _lookAtChats() {
    const { client, signal } = this._context;
    const today = new Date().toISOString().slice(0, 10);
    const [failed, usage, budgets] = await Promise.all([
      client.chats({ state: "failed", limit: FAILED_SHOWN, signal }), client.usage({ by: ["owner"], since: today, signal }), client.budgets({ signal })]);
    replace(this._failed, failed.chats.length ? h("ul", { class: "plain-list" }, failed.chats.map((chat) => h("li", { class: "row nowrap" },
      h("a", { class: "grow ellipsis", href: link("chats", chat.id) }, plain(chat.title || chat.opening || chat.id)),
      h("span", { class: "muted small" }, `${plain(chat.agent)}, ${ago(chat.updated_at)}`))),
    failed.next ? h("li", { class: "muted" }, "and more") : null) : h("p", { class: "muted" }, "None."));
    this._showSpending(usage, new Map(budgets.budgets.map((budget) => [budget.owner, budget])));
  }

  _showSpending(/** @type {Schemas["UsageShown"][]} */ usage, /** @type {Map<string, Schemas["BudgetShown"]>} */ budgets) {
    const most = [...usage].sort((one, other) => other.cost - one.cost || other.tokens - one.tokens);
    if (!most.length) return void replace(this._spending, h("p", { class: "muted" }, "Nothing was spent today."));
    const rows = most.slice(0, OWNERS_SHOWN).map((line) => {
      const budget = budgets.get(line.owner);
      const [spent, limit, words] = budget?.day_cost != null ? [line.cost, budget.day_cost, money(budget.day_cost)]
        : budget?.day_tokens != null ? [line.tokens, budget.day_tokens, `${count(budget.day_tokens)} tokens`] : [0, 0, ""];
      return [line.owner ? plain(line.owner) : h("span", { class: "muted" }, "no owner"), count(line.tokens), money(line.cost),
        limit ? h("span", { class: "row nowrap" }, words, meter(spent, limit, `${Math.round((100 * spent) / limit)} % of the day's budget`)) : h("span", { class: "muted" }, "none set")];
    });
    const sum = most.reduce((all, line) => ({ tokens: all.tokens + line.tokens, cost: all.cost + line.cost }), { tokens: 0, cost: 0 });
    const foot = most.length > 1 ? [[h("b", null, `all ${most.length} owners`), count(sum.tokens), money(sum.cost), ""]] : [];
    replace(this._spending, table(["owner", "tokens", "cost", "budget of the day"], [...rows, ...foot], [1, 2]));
  }
}

function tenths(/** @type {number} */ value) {
  return value === 0 || value >= 10 ? String(Math.round(value)) : value.toFixed(1);
}

/** @type {Record<string, string>} */
const ENDED = { retired: "left", died: "died", silent: "fell silent" };

function section(/** @type {string} */ title, /** @type {HTMLElement} */ content) {
  return h("section", { class: "card panel", "aria-label": title }, h("h2", null, title), content);
}

/** `numbers`: the columns that are. */
function table(/** @type {string[]} */ heads, /** @type {(Node | string)[][]} */ rows, /** @type {number[]} */ numbers = []) {
  const of = (/** @type {number} */ n) => (numbers.includes(n) ? "number" : null);
  return h("table", { class: "table stack" }, h("thead", null, h("tr", null, heads.map((head, n) => h("th", { scope: "col", class: of(n) }, head)))),
    h("tbody", null, rows.map((row) => h("tr", null, row.map((cell, n) => h("td", { class: of(n), data: { label: heads[n] } }, cell))))));
}
