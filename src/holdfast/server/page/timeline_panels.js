/** What stands under the timeline: the chosen span with its entries, the chat as it was then, why it waits, all spans as a table. */

import { forkPlace } from "./as_of.js";
import { h } from "./dom.js";
import { lasting, shortName } from "./timeline_model.js";
import { callWords, plain, stateWords } from "./words.js";

/** @typedef {import("./timeline_model.js").Span} Span */
/** @typedef {import("./as_of.js").Entry} Entry */
/** @typedef {import("./as_of.js").AsOf} AsOf */

const ENTRIES_SHOWN = 200; // of a span
const MESSAGES_SHOWN = 60; // of the past, the last ones
const CHARS_SHOWN = 4_000; // of one entry or message

/** @type {Record<string, string>} */
const TONES = { done: "ok", answered: "ok", failed: "bad", lost: "bad", unknown: "warn", stopped: "warn", denied: "warn", cancelled: "warn", running: "info", over: "" };
/** @type {Record<string, string>} */
const KINDS = {
  turn: "turn", attempt: "model", retry: "pause before a retry", compaction: "summary", call: "tool", approval: "approval", question: "question",
  client: "client", child: "sub-agent", timer: "timer", due: "waits for a worker", stop: "stop", gap: "no worker had it", handover: "handover",
};

const clipped = (/** @type {string} */ text) => (text.length > CHARS_SHOWN ? `${text.slice(0, CHARS_SHOWN)}… (${text.length} characters)` : text);

export const linkOf = (/** @type {string} */ chatId, /** @type {string} */ cursor) => `#/chats/${encodeURIComponent(chatId)}/timeline?at=${encodeURIComponent(cursor)}`;

const after = (/** @type {number} */ at, /** @type {number} */ origin) => `+${lasting(at - origin)}`;

/** The chosen span: what it was, how long, and what the journal says of it. */
export function spanPanel(/** @type {{ span: Span, entries: Entry[], chatId: string, origin: number, now: number, at: string | null }} */ { span, entries, chatId, origin, now, at }) {
  const shown = entries.slice(0, ENTRIES_SHOWN);
  const rest = entries.length - shown.length;
  const worker = span.hold?.worker;
  return [
    h("header", { class: "row wrap" },
      h("h2", { id: "timeline-span" }, headOf(span, now)),
      h("span", { class: "chip" }, KINDS[span.kind] ?? span.kind),
      h("span", { class: `chip ${TONES[span.state] ?? ""}` }, span.state === "over" ? "over" : span.state),
      h("a", { class: "button quiet", href: linkOf(chatId, entries[0]?.cursor ?? "") }, "Link to this"),
    ),
    h("p", {}, plain(span.words)),
    h("dl", { class: "span-facts" },
      h("dt", {}, "began"), h("dd", {}, after(span.from, origin)),
      h("dt", {}, span.until === null ? "for" : "took"), h("dd", {}, lasting((span.until ?? now) - span.from)),
      ...(worker ? [h("dt", {}, "worker"), h("dd", { class: "mono" }, plain(worker))] : []),
      ...(span.child_id ? [h("dt", {}, "sub-agent"), h("dd", {}, h("a", { href: `#/chats/${encodeURIComponent(span.child_id)}/timeline` }, span.child_id))] : []),
    ),
    h("ol", { class: "entries" }, ...shown.map((entry) => entryLine(entry, chatId, origin, entry.cursor === at))),
    ...(rest > 0 ? [h("p", { class: "muted" }, `${rest} more entries are not shown here: choose a shorter span.`)] : []),
  ];
}

function headOf(/** @type {Span} */ span, /** @type {number} */ now) {
  if (span.kind === "gap") return `${lasting((span.until ?? now) - span.from)} without a worker`;
  if (span.kind === "handover") return "Handed over";
  return plain(span.name || KINDS[span.kind] || span.kind);
}

function entryLine(/** @type {Entry} */ entry, /** @type {string} */ chatId, /** @type {number} */ origin, /** @type {boolean} */ linked) {
  const { cursor, ...data } = entry;
  const json = h("pre", { class: "mono" }, clipped(JSON.stringify(data, null, 2)));
  const summary = h("summary", {}, h("span", { class: "mono seq" }, `${entry.seq}`), h("code", {}, plain(entry.kind)), h("span", { class: "muted" }, after(entry.at, origin)));
  return h("li", { class: linked ? "linked" : "" }, h("details", linked ? { open: "" } : {}, summary, json, h("a", { class: "button quiet", href: linkOf(chatId, cursor) }, "Link to this entry")));
}

/** What a message said, as text. Nothing of it is markup. */
function textOf(/** @type {any} */ message) {
  return message.parts.map((/** @type {any} */ part) => {
    if (part.kind === "text") return part.text;
    if (part.kind === "tool_call") return `→ ${part.name}(${part.arguments})`;
    if (part.kind === "tool_result") return `${part.name} = ${part.content}`;
    if (part.kind === "expansion") return `/${part.name} stands for: ${part.text}`;
    return `[${part.kind}]`;
  }).join("\n");
}

/** The chat as it was, and the way to go on from there. */
export function pastPanel(/** @type {{ value: AsOf, entries: Entry[], whole: boolean, origin: number, last: boolean, mayFork: boolean, fork: (upto: number) => void, back: () => void }} */ { value, entries, whole, origin, last, mayFork, fork, back }) {
  const messages = value.messages.slice(-MESSAGES_SHOWN);
  const earlier = value.messages.length - messages.length;
  const [state, tone] = stateWords(value.state);
  return [
    h("header", { class: "row wrap" },
      h("h2", {}, last ? "The chat now" : "The chat as it was"),
      h("span", { class: `chip ${tone}` }, state),
      h("span", { class: "muted" }, `entry ${value.seq}${value.at === null ? "" : `, ${after(value.at, origin)}`}${value.worker ? `, ${shortName(value.worker)} has it` : ""}`),
      ...(last ? [] : [h("button", { class: "button quiet", type: "button", on: { click: back } }, "Back to now")]),
    ),
    ...(whole ? [] : [h("p", { class: "muted" }, "Earlier turns are not loaded: these are the messages of this window.")]),
    ...(earlier > 0 ? [h("p", { class: "muted" }, `${earlier} earlier messages are not shown.`)] : []),
    h("ol", { class: "past" }, ...messages.map(({ message }) => h("li", { class: `past-${message.role}` }, h("span", { class: "role" }, message.role), h("div", { class: "said" }, clipped(textOf(message)) || "(nothing)")))),
    ...(value.messages.length ? [] : [h("p", { class: "empty" }, "There was no message yet.")]),
    ...(value.calls.length ? [h("h3", {}, "Calls that were open"), h("ul", { class: "open-calls" }, ...value.calls.map((call) => h("li", {}, h("span", { class: `chip ${callWords(call.state)[1]}` }, callWords(call.state)[0]), " ", h("code", {}, plain(call.name)), call.question ? ` ${plain(call.question)}` : "")))] : []),
    ...(value.queue.length ? [h("h3", {}, "Queued"), h("ul", {}, ...value.queue.map((queued) => h("li", {}, clipped(textOf(queued.message)))))] : []),
    ...forkPart(value, entries, { whole, mayFork, fork }),
  ];
}

function forkPart(/** @type {AsOf} */ value, /** @type {Entry[]} */ entries, /** @type {{ whole: boolean, mayFork: boolean, fork: (upto: number) => void }} */ { whole, mayFork, fork }) {
  if (!mayFork) return [];
  if (!whole) return [h("p", { class: "muted" }, "To fork from here, load the chat from its beginning: positions are counted from there.")];
  const place = forkPlace(entries, value);
  const words = [];
  if (place.cut) words.push(`A message was edited since: what came behind it is not in the history any more, and a fork has the ${place.length} messages before that.`);
  else if (place.open.length) words.push(`${place.open.join(", ")} had no result yet: the fork ends before the response that asked for it.`);
  if (place.length === 0) return [h("p", { class: "muted" }, "There is nothing before this place that a fork could have.")];
  return [
    h("div", { class: "row wrap" }, h("button", { class: "button primary", type: "button", on: { click: () => fork(place.length - 1) } }, place.cut ? `Fork the ${place.length} that are left` : "Fork from here")),
    ...words.map((sentence) => h("p", { class: "muted" }, sentence)),
  ];
}

const capital = (/** @type {string} */ text) => text.slice(0, 1).toUpperCase() + text.slice(1);

/** Why it waits, in words. */
export function whyPanel(/** @type {any} */ why, /** @type {number} */ now) {
  const since = why.since ? `, for ${lasting(now - why.since)}` : "";
  const left = why.deadline_at ? why.deadline_at - now : null;
  const troubles = why.troubles ?? [];
  return [
    h("h2", {}, "Why is it waiting?"),
    h("p", { class: "why-words" }, `${capital(plain(why.words))}${since}.`),
    h("p", {}, h("strong", {}, "Next: "), plain(why.next)),
    ...(left === null ? [] : [h("p", { class: "muted" }, `${left > 0 ? `In ${lasting(left)}` : `${lasting(-left)} ago`}: ${plain(why.deadline ?? "its deadline")}.`)]),
    ...(why.worker ? [h("p", { class: "muted" }, `Worker ${plain(why.worker)} has it${why.worker_heard_at ? `, heard of ${lasting(now - why.worker_heard_at)} ago` : ""}.`)] : []),
    ...(troubles.length ? [h("h3", {}, "What went wrong of late"), h("ul", {}, ...troubles.map((/** @type {any} */ one) => h("li", {}, h("code", {}, plain(one.what)), ` ${plain(one.error)}`)))] : []),
    ...(why.child ? [h("p", {}, h("a", { href: `#/chats/${encodeURIComponent(why.child.chat_id)}/timeline` }, "The sub-agent that it waits for"), `: ${plain(why.child.words)}`)] : []),
  ];
}

/** Every span as a row, in the order of time: for those who do not see the picture, and for those who look for one. */
export function spanTable(/** @type {Span[]} */ spans, /** @type {number} */ origin, /** @type {number} */ now, /** @type {(span: Span) => void} */ choose) {
  const rows = [...spans].sort((one, other) => one.from - other.from).map((span) =>
    h("tr", {},
      h("td", {}, after(span.from, origin)),
      h("td", {}, lasting((span.until ?? now) - span.from)),
      h("td", {}, h("button", { class: "button quiet", type: "button", on: { click: () => choose(span) } }, plain(`${KINDS[span.kind] ?? span.kind}: ${span.name || span.state}`))),
      h("td", {}, span.hold?.worker ? shortName(plain(span.hold.worker)) : ""),
      h("td", {}, plain(span.words)),
    ));
  return h("table", { class: "table" }, h("caption", {}, "All spans of the timeline"),
    h("thead", {}, h("tr", {}, ...["began", "took", "what", "worker", "in words"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...rows));
}
