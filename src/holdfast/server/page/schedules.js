/** When agents start by themselves: each schedule with its next instants and what became of those before. */

import { asked, button, h, replace } from "./dom.js";
import { poll } from "./poll.js";
import { link } from "./router.js";
import { ago, clock, duration, plain } from "./words.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("../client/holdfast.js").Schemas["ScheduleShown"]} Schedule */
/** @typedef {import("../client/holdfast.js").Schemas["OccurrenceShown"]} Occurrence */

const LOOK_MS = 3000;
const SHOWN = 100;
const OCCURRENCES_SHOWN = 15;
/** @type {Record<string, [string, string]>} */
const STATES = { active: ["active", "ok"], paused: ["paused", "warn"], ended: ["over", ""] };
/** @type {Record<string, string>} */
const PAUSED_BY = { person: "by a person", failures: "after too many failures", undeclared: "it is not declared any more" };
/** @type {Record<string, [string, string]>} */
const OUTCOMES = {
  done: ["done", "ok"], failed: ["failed", "bad"], stopped: ["stopped", "warn"], budget: ["out of budget", "warn"], deadline: ["took too long", "bad"],
  superseded: ["superseded", "warn"], withdrawn: ["withdrawn", ""], deleted: ["its chat is deleted", ""],
};
/** @type {Record<string, string>} */
const SKIPPED = { late: "too late: no worker was there", superseded: "a newer one took its place", overlap: "the one before still ran", queue_full: "too many waited", refused: "refused" };

export function show(/** @type {Context} */ context) {
  return { title: "Schedules", element: new SchedulesView(context).element, close: () => {} };
}

class SchedulesView {
  constructor(/** @type {Context} */ context) {
    this._context = context;
    /** @type {Map<string, ScheduleCard>} */
    this._cards = new Map();
    this._list = h("div", { class: "schedules" });
    this._state = h("div", { "aria-live": "polite" }, h("div", { class: "empty" }, h("p", null, "Looking…")));
    this.element = h("div", { class: "view" },
      h("header", { class: "view-head" }, h("div", { class: "row" }, h("a", { class: "button quiet menu-button", href: "#/" }, "Menu"), h("h1", null, "Schedules"))),
      this._state, this._list);
    this._look = poll(LOOK_MS, () => this._refresh(), context.signal);
  }

  async _refresh() {
    const { client, signal } = this._context;
    try {
      this._show(await client.schedules.list({ limit: SHOWN, signal }));
    } catch (error) {
      if (signal.aborted) return;
      const forbidden = error instanceof Error && "status" in error && error.status === 403;
      if (!this._cards.size) replace(this._state, h("div", { class: "empty" }, h("h2", null, "Nothing to show"),
        h("p", null, forbidden ? "Your token is for one chat alone, or may not read." : "Schedules could not be read. Trying again…")));
      throw error;
    }
  }

  _show(/** @type {import("../client/holdfast.js").Schemas["ScheduleList"]} */ { schedules, next }) {
    const known = new Set(schedules.map((schedule) => schedule.id));
    for (const [id, card] of this._cards) {
      if (known.has(id)) continue;
      card.element.remove();
      this._cards.delete(id);
    }
    for (const schedule of [...schedules].reverse()) {
      const card = this._cards.get(schedule.id);
      if (card) card.show(schedule);
      else {
        const made = new ScheduleCard(this._context, schedule, () => this._look());
        this._cards.set(schedule.id, made);
        this._list.prepend(made.element);
      }
    }
    replace(this._state, schedules.length ? next ? h("p", { class: "muted" }, `The newest ${SHOWN} are shown.`) : null : none());
  }
}

function none() {
  return h("div", { class: "empty" }, h("div", { class: "empty-mark", "aria-hidden": "true" }, "◷"), h("h2", null, "No schedules yet"),
    h("p", null, "An agent can start by itself: every night, every five minutes, once. Each instant fires once, whatever dies meanwhile."),
    h("pre", { class: "example" }, 'holdfast schedules add report "Report for {date}" --agent assistant --cron "0 9 * * 1-5"'));
}

class ScheduleCard {
  constructor(/** @type {Context} */ context, /** @type {Schedule} */ schedule, /** @type {() => void} */ changed) {
    this._context = context;
    this._schedule = schedule;
    this._changed = changed;
    this._told = "";
    this._head = h("div", { class: "schedule-head" });
    this._facts = h("dl", { class: "pairs" });
    this._occurrences = h("div", { class: "scroll-x" });
    this._actions = h("div", { class: "row" });
    this._details = h("details", { on: { toggle: () => void this._showOccurrences() } }, h("summary", null, "What became of each instant"), this._occurrences);
    this.element = h("section", { class: "card", "aria-label": plain(schedule.name) }, this._head, this._facts, this._actions, this._details);
    this.show(schedule);
  }

  show(/** @type {Schedule} */ schedule) {
    this._schedule = schedule;
    const [words, tone] = STATES[schedule.state] ?? [schedule.state, ""];
    const why = schedule.state === "paused" && schedule.paused_by ? ` ${PAUSED_BY[schedule.paused_by] ?? ""}` : "";
    replace(this._head, h("h2", { class: "grow break" }, plain(schedule.name)), h("span", { class: `chip ${tone}` }, h("span", { class: "dot" }), words + why));
    const rows = [
      ["when", timing(schedule)],
      ["agent", h("span", null, plain(schedule.agent), schedule.owner && this._context.me.owner === null ? h("span", { class: "muted" }, ` for ${plain(schedule.owner)}`) : null)],
      ["says", h("span", { class: "break", dir: "auto" }, plain(schedule.message))],
      ["next", this._next(schedule)],
      ["so far", `fired ${schedule.fired}, skipped ${schedule.skipped}${schedule.failures ? `, ${schedule.failures} failures in a row` : ""}`],
      ...(schedule.note ? [["note", h("span", { class: "break" }, plain(schedule.note))]] : []),
    ];
    replace(this._facts, rows.flatMap(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
    if (!this._actions.contains(document.activeElement) || this._shownState !== schedule.state) this._showActions(schedule);
    void this._showOccurrences();
  }

  _next(/** @type {Schedule} */ { next }) {
    if (!next.length) return h("span", { class: "muted" }, "none");
    return h("span", null, h("b", null, `in ${duration(Math.max(0, next[0] - Date.now()))}`), h("span", { class: "muted" }, `, ${next.slice(0, 3).map(clock).join(" · ")}`));
  }

  _showActions(/** @type {Schedule} */ schedule) {
    this._shownState = schedule.state;
    if (!this._context.may("chat")) return void replace(this._actions);
    const had = this._actions.contains(document.activeElement);
    replace(this._actions,
      button("Trigger now", () => void this._trigger()),
      schedule.state === "active" ? button("Pause…", () => void this._pause()) : schedule.state === "paused" ? button("Resume", () => void this._resume()) : null);
    if (had) /** @type {HTMLElement} */ (this._actions.lastElementChild)?.focus();
  }

  async _trigger() {
    await this._context.try(async () => {
      const made = await this._context.client.schedules.trigger(this._schedule.id);
      const name = plain(this._schedule.name);
      if (made.state === "skipped") this._context.say(`${name} was skipped: ${SKIPPED[made.reason ?? ""] ?? "its policy says so"}.`, { bad: true });
      else this._context.say(`${name} ${made.state === "held" ? "waits for the one before" : "was started"}.`);
      this._changed();
      this._context.changed();
    }, "It was not triggered");
  }

  async _pause() {
    const note = h("input", { class: "field", "aria-label": "Why", placeholder: "Why? It may be left empty" });
    const yes = await asked({ title: `Pause ${plain(this._schedule.name)}?`, words: "What it has begun goes on.", yes: "Pause", fields: [note] });
    if (!yes) return;
    await this._context.try(async () => {
      await this._context.client.schedules.pause(this._schedule.id, note.value);
      this._changed();
    }, "It was not paused");
  }

  async _resume() {
    await this._context.try(async () => {
      await this._context.client.schedules.resume(this._schedule.id);
      this._changed();
    }, "It was not resumed");
  }

  /** While they are looked at. */
  async _showOccurrences() {
    if (!this._details.open) return;
    const { client, signal } = this._context;
    try {
      const { occurrences } = await client.schedules.occurrences(this._schedule.id, { limit: OCCURRENCES_SHOWN, signal });
      const told = JSON.stringify(occurrences);
      if (told === this._told) return; // what has the focus in it keeps it
      this._told = told;
      replace(this._occurrences, occurrences.length ? h("table", { class: "table" },
        h("thead", null, h("tr", null, ["instant", "what became of it", "took", "chat"].map((head) => h("th", { scope: "col" }, head)))),
        h("tbody", null, occurrences.map(row))) : h("p", { class: "muted" }, "None yet."));
    } catch (error) {
      if (!signal.aborted) replace(this._occurrences, h("p", { class: "muted" }, `They could not be read: ${error instanceof Error ? plain(error.message) : ""}`));
    }
  }
}

function row(/** @type {Occurrence} */ one) {
  const [words, tone] = one.state === "ended" ? OUTCOMES[one.outcome ?? ""] ?? ["over", ""] : one.state === "fired" ? ["at work", "info"]
    : one.state === "held" ? ["waits for the one before", "warn"] : [`skipped: ${SKIPPED[one.reason ?? ""] ?? plain(one.reason ?? "")}`, ""];
  const took = one.fired_at && one.ended_at ? duration(one.ended_at - one.fired_at) : "";
  return h("tr", null,
    h("td", null, h("span", { title: ago(one.at) }, clock(one.at)), one.count > 1 ? h("span", { class: "muted" }, ` and ${one.count - 1} more`) : null,
      one.kind === "scheduled" ? null : h("span", { class: "muted small" }, ` ${one.kind}`)),
    h("td", null, h("span", { class: `chip ${tone}` }, words), one.detail ? h("div", { class: "muted small break" }, plain(one.detail)) : null),
    h("td", null, took),
    h("td", null, one.chat_id ? h("a", { href: link("chats", one.chat_id) }, "open") : ""));
}

function timing(/** @type {Schedule} */ schedule) {
  if (schedule.cron) return h("span", null, h("code", null, plain(schedule.cron)), h("span", { class: "muted" }, ` ${plain(schedule.zone)}`));
  if (schedule.every_s) return `every ${duration(schedule.every_s * 1000)}`;
  return schedule.at ? `once, ${clock(schedule.at)}` : "–";
}
