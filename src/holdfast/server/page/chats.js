/** The list of chats beside every view: search, filters, and what waits for a person marked. */

import { button, h, replace } from "./dom.js";
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
  let pages = 1;
  let current = placeOf(location.hash).path[1] ?? "";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let typing;

  async function look() {
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

  function show(/** @type {ChatListed[]} */ chats, /** @type {boolean} */ more) {
    const focused = document.activeElement instanceof HTMLElement && lines.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    replace(lines, chats.map(line), more && pages < PAGES_MAX ? h("li", null, button("Show more", showMore, "quiet")) : null,
      chats.length ? null : h("li", { class: "empty" }, search.value || filter.value !== "all" ? "No chat is like that." : "No chats yet."));
    if (focused) [...lines.querySelectorAll("a")].find((anchor) => anchor.dataset.id === focused)?.focus();
  }

  function line(/** @type {ChatListed} */ chat) {
    const [words, kind] = stateWords(chat.state);
    const chip = chat.state === "idle" ? null
      : h("span", { class: `chip ${kind}` }, h("span", { class: `dot ${chat.state === "running" ? "pulse" : ""}` }), words);
    return h("li", null, h("a", { class: "chat-line", href: link("chats", chat.id), data: { id: chat.id }, "aria-current": chat.id === current ? "page" : null },
      h("span", { class: "name" }, h("span", { class: "grow ellipsis" }, plain(nameOf(chat))), chip),
      h("span", { class: "meta" }, h("span", { class: "ellipsis" }, plain(chat.agent)), h("span", null, ago(chat.updated_at)),
        chat.queued ? h("span", null, `${chat.queued} queued`) : null)));
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

/** What a chat is called: its title, or the words that it began with. */
export function nameOf(/** @type {{ title: string | null, opening?: string | null, id: string }} */ chat) {
  return chat.title || chat.opening || chat.id;
}
