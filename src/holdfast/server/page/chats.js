/** The list of chats beside every view: search, filters, and what waits for a person marked. */

import { arrange, button, h, replace } from "./dom.js";
import { poll } from "./poll.js";
import { link, placeOf } from "./router.js";
import { ago, plain, stateWords } from "./words.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("../client/holdfast.js").Schemas["ChatListed"]} ChatListed */

const LOOK_MS = 3000;
const SEARCH_MS = 250;
const PAGE = 50;
const PAGES_MAX = 20; // of the list that is kept up to date

/** @type {[string, string, Record<string, unknown>][]} name, words, what is asked for */
const FILTERS = [
  ["all", "All", { archived: false }],
  ["running", "Working", { state: "running", archived: false }],
  ["waiting", "Waiting", { state: "waiting", archived: false }],
  ["failed", "Failed", { state: "failed", archived: false }],
  ["idle", "At rest", { state: "idle", archived: false }],
  ["archived", "Archived", { archived: true }],
];

export function chatList(/** @type {Context} */ context) {
  const search = h("input", { type: "search", class: "field", placeholder: "Search chats", "aria-label": "Search chats", maxlength: 200 });
  const filter = h("select", { class: "field", "aria-label": "Which chats" }, FILTERS.map(([name, words]) => h("option", { value: name }, words)));
  const agent = h("select", { class: "field", "aria-label": "Of which agent" }, h("option", { value: "" }, "Any agent"));
  const lines = h("ul", { class: "chat-list", "aria-label": "Chats" }, h("li", { class: "empty" }, "Loading…"));
  const more = h("li", null, button("Show more", showMore, "quiet"));
  /** @type {Map<string, ChatLine>} those that are shown */
  let shown = new Map();
  let pages = 1;
  let current = placeOf(location.hash).path[1] ?? "";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let typing;

  async function look() {
    try {
      await read();
    } catch (error) {
      if (!shown.size) replace(lines, h("li", { class: "empty" }, "The chats could not be read. They are asked for again."));
      throw error;
    }
  }

  async function read() {
    /** @type {ChatListed[]} */
    const found = [];
    let before;
    for (let page = 0; page < pages; page++) {
      const asked = FILTERS.find(([name]) => name === filter.value)?.[2];
      const answer = await context.client.chats({ ...asked, search: search.value || undefined, agent: agent.value || undefined, before, limit: PAGE });
      found.push(...answer.chats);
      before = answer.next ?? undefined;
      if (!before) break;
    }
    show(found, before !== undefined);
  }

  function show(/** @type {ChatListed[]} */ chats, /** @type {boolean} */ others) {
    shown = new Map(chats.map((chat) => {
      const line = shown.get(chat.id) ?? new ChatLine(chat.id);
      line.show(chat, chat.id === current);
      return [chat.id, line];
    }));
    const none = h("li", { class: "empty" }, search.value || filter.value !== "all" || agent.value ? "No chat is like that." : "No chats yet.");
    arrange(lines, [...[...shown.values()].map((line) => line.element), ...(others && pages < PAGES_MAX ? [more] : []), ...(chats.length ? [] : [none])]);
  }

  function showMore() {
    pages += 1;
    now();
  }

  function begin() {
    pages = 1;
    now();
  }

  const now = poll(LOOK_MS, look, context.signal);
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(begin, SEARCH_MS);
  });
  filter.addEventListener("change", begin);
  agent.addEventListener("change", begin);
  document.addEventListener("place", (event) => {
    current = /** @type {CustomEvent} */ (event).detail.path[1] ?? "";
    for (const anchor of lines.querySelectorAll("a")) {
      if (anchor.dataset.id === current) anchor.setAttribute("aria-current", "page");
      else anchor.removeAttribute("aria-current");
    }
  });
  void context.client.agents().then((agents) => {
    agent.append(...agents.map(({ name }) => h("option", { value: name }, plain(name))));
    agent.hidden = agents.length < 2;
  }, () => { agent.hidden = true; });

  const head = h("div", { class: "list-head", role: "search" }, search, h("div", { class: "row" }, filter, agent));
  return { element: h("div", { class: "lists" }, head, lines), look: now };
}

/** One of the list. It is changed in place: nobody loses it under their finger, or their focus. */
class ChatLine {
  constructor(/** @type {string} */ id) {
    this._name = h("span", { class: "grow ellipsis" });
    this._chip = h("span", null);
    this._agent = h("span", { class: "ellipsis" });
    this._ago = h("span", null);
    this._queued = h("span", null);
    this._link = h("a", { class: "chat-line", href: link("chats", id), data: { id } }, h("span", { class: "name" }, this._name, this._chip),
      h("span", { class: "meta" }, this._agent, this._ago, this._queued));
    this._state = "";
    this.element = h("li", null, this._link);
  }

  show(/** @type {ChatListed} */ chat, /** @type {boolean} */ current) {
    write(this._name, plain(nameOf(chat)));
    write(this._agent, plain(chat.agent));
    write(this._ago, ago(chat.updated_at));
    write(this._queued, chat.queued ? `${chat.queued} queued` : "");
    if (current) this._link.setAttribute("aria-current", "page");
    else this._link.removeAttribute("aria-current");
    if (this._state === chat.state) return;
    this._state = chat.state;
    const [words, kind] = stateWords(chat.state);
    this._chip.className = `chip ${kind}`;
    this._chip.hidden = chat.state === "idle";
    replace(this._chip, h("span", { class: `dot ${chat.state === "running" ? "pulse" : ""}` }), words);
  }
}

function write(/** @type {HTMLElement} */ place, /** @type {string} */ words) {
  if (place.textContent !== words) place.textContent = words;
}

/** What a chat is called: its title, or the words that it began with. */
export function nameOf(/** @type {{ title: string | null, opening?: string | null, id: string }} */ chat) {
  return chat.title || chat.opening || chat.id;
}
