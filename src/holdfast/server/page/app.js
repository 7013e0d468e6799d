/** The start of the page: who this is, the frame around the views, and which view is shown. */

import { Holdfast } from "../client/holdfast.js";
import { chatList } from "./chats.js";
import { h, replace } from "./dom.js";
import { poll } from "./poll.js";
import { link, placeOf } from "./router.js";
import { StreamGate } from "./stream_gate.js";
import { plain, problemWords } from "./words.js";

/** @typedef {import("./router.js").Place} Place */
/** @typedef {import("../client/holdfast.js").Schemas["PrincipalShown"]} Me */
/** @typedef {import("../client/holdfast.js").ConnectionState} ConnectionState */
/**
 * What a view is given.
 * @typedef {object} Context
 * @property {Holdfast} client
 * @property {Me} me
 * @property {(scope: string) => boolean} may
 * @property {(hash: string) => void} go
 * @property {(words: string, options?: { bad?: boolean }) => void} say a word that passes
 * @property {(work: Promise<unknown> | (() => Promise<unknown>), failed: string) => Promise<boolean>} try says what went wrong
 * @property {StreamGate} gate which every stream of the page goes through
 * @property {(state: ConnectionState) => void} connection how the stream of the view stands
 * @property {() => void} changed the list of chats, and the inbox, look again
 * @property {(count: number, more: boolean) => void} waiting so much waits for an answer in all chats, as the view has seen just now
 * @property {(words: string) => void} title of the tab
 * @property {AbortSignal} signal aborted when the view is left
 */
/** @typedef {{ title: string, element: HTMLElement, close?: () => void }} View */

const HEALTH_MS = 5000;
const HEALTH_AGAIN_MS = 2000; // where there was no answer
const INBOX_MS = 5000;
const INBOX_HIDDEN_MS = 60_000; // for the title of a tab that nobody looks at
const CATCHING_UP_MS = 400; // that is not told of
const TOAST_MS = 6000;
const OFFLINE = "Offline. This page goes on when the network is back.";
const SICK_LOOKS = 2; // in a row, before it is told: a busy machine stands still for a moment

/** @type {Record<string, () => Promise<{ show: (context: Context, place: Place) => View }>>} */
const VIEWS = {
  new: () => import("./new_chat.js"),
  chat: () => import("./chat.js"),
  inbox: () => import("./inbox.js"),
  schedules: () => import("./schedules.js"),
  operations: () => import("./operations.js"),
  timeline: () => import("./timeline.js"),
};

function nameOf(/** @type {Place} */ { path: [first, , third] }) {
  if (first === "chats") return third !== undefined && Object.hasOwn(VIEWS, third) ? third : "chat";
  return first !== undefined && Object.hasOwn(VIEWS, first) ? first : "new";
}

const root = /** @type {HTMLElement} */ (document.getElementById("app"));
const url = location.pathname.replace(/\/+$/, "");
const client = new Holdfast({ url });
const impatient = new Holdfast({ url, patience_ms: 0 }); // asks once: what does not answer is told
const gate = new StreamGate((now) => {
  crowded = now;
  showBanner();
});
const main = h("main", { id: "main", class: "main", tabindex: "-1" });
const banner = h("div", { class: "banner", role: "status", hidden: true });
const inboxCount = h("span", { class: "chip warn", hidden: true });
const toasts = h("div", { class: "toasts", role: "log", "aria-live": "polite", "aria-label": "Messages of this page" });
/** @type {AbortController} */
let leaving = new AbortController();
/** @type {View | null} */
let shown = null;
/** @type {() => void} */
let lookAgain = () => {};
/** @type {ConnectionState} */
let connection = "live";
/** @type {ReturnType<typeof setTimeout> | undefined} */
let catchingUp;
let crowded = false; // more streams are seen than the browser has connections
let unanswered = 0; // looks at the server's health in a row
let waitingCount = 0; // for an answer, in all chats
let waitingToldAt = 0;
let title = "";
/** @type {{ words: string, bad: boolean } | null} */
let trouble = null;
let sick = 0;
/** @type {string | null} the session ended while the page was open */
let loggedOut = null;

function say(/** @type {string} */ words, { bad = false } = {}) {
  const toast = h("div", { class: `toast ${bad ? "bad" : ""}` }, words);
  toasts.append(toast);
  setTimeout(() => toast.remove(), bad ? 2 * TOAST_MS : TOAST_MS);
}

/** @returns {Promise<boolean>} whether it was done. What `left` ended was not wanted any more: nothing is said of that. */
async function tryTo(/** @type {Promise<unknown> | (() => Promise<unknown>)} */ work, /** @type {string} */ failed, /** @type {AbortSignal} */ left) {
  try {
    await (typeof work === "function" ? work() : work);
    return true;
  } catch (error) {
    if (left.aborted && error === left.reason) return false;
    say(`${failed}: ${problemWords(error)}`, { bad: true });
    return false;
  }
}

/** @type {Record<ConnectionState, string>} */
const CONNECTIONS = { live: "", resting: "", reconnecting: "Reconnecting…", "catching up": "Catching up…" };

function showBanner() {
  const turns = crowded ? "More chats are on the screen than the browser has connections. They take turns: new words come every few seconds." : "";
  const words = trouble?.words ?? loggedOut ?? (CONNECTIONS[connection] || turns);
  banner.hidden = !words;
  banner.className = `banner ${trouble?.bad || loggedOut ? "bad" : ""}`;
  if (banner.dataset.words === words) return; // it is not said again
  banner.dataset.words = words;
  replace(banner, words, words === loggedOut ? h("a", { href: "login" }, "Log in") : null);
}

/** How this server is, and whether there is one. */
async function lookAtHealth() {
  try {
    const health = await impatient.health({ signal: AbortSignal.timeout(HEALTH_MS) });
    unanswered = 0;
    const reasons = health.reasons.map(plain).join(", ");
    sick = health.status === "ok" ? 0 : sick + 1;
    trouble = health.status === "ok" || (health.status !== "draining" && sick < SICK_LOOKS) ? null
      : health.status === "draining" ? { words: "The server is being replaced. This page goes on by itself.", bad: false }
        : { words: `The server is ${health.status}${reasons ? `: ${reasons}` : ""}`, bad: health.status === "unhealthy" };
  } catch (error) {
    unanswered += 1; // the first time it may be a deploy
    trouble = !navigator.onLine ? { words: OFFLINE, bad: true }
      : unanswered < 2 ? { words: "Reconnecting…", bad: false } : { words: "The server does not answer. Trying again…", bad: true };
    throw error;
  } finally {
    showBanner();
  }
}

/** A session that has ended is told, wherever one is; what was written stays. @returns {never} */
function lookAtSession(/** @type {unknown} */ error) {
  loggedOut = error instanceof Error && "status" in error && error.status === 401 ? "You are logged out. What runs goes on, and what you wrote is kept." : null;
  showBanner();
  throw error;
}

function places(/** @type {Me} */ me) {
  const entries = [["Inbox", "inbox", inboxCount], ["Schedules", "schedules", null]];
  if (me.operates) entries.push(["Operations", "operations", null]);
  return h("ul", { class: "places" }, entries.filter(([, place]) => String(place) in VIEWS).map(([words, place, more]) =>
    h("li", null, h("a", { href: link(String(place)), data: { place } }, String(words), /** @type {Node | null} */ (more)))));
}

function frame(/** @type {Me} */ me, /** @type {HTMLElement} */ list) {
  const who = me.owner || me.name;
  return [
    banner,
    h("nav", { class: "side", "aria-label": "Chats and places" },
      h("div", { class: "side-head" },
        h("a", { class: "brand", href: "#/" }, h("img", { src: "page/icon.svg", alt: "" }), "holdfast"),
        me.scopes.includes("chat") ? h("a", { class: "button primary", href: "#/new" }, "New chat") : null),
      places(me),
      list,
      h("div", { class: "side-foot" },
        h("span", { class: "ellipsis muted", title: `version ${me.version}` }, plain(who)),
        h("form", { method: "post", action: "logout" }, h("button", { class: "button quiet" }, "Log out")))),
    main,
    toasts,
  ];
}

/** @returns {Context} */
function contextFor(/** @type {Me} */ me, /** @type {AbortSignal} */ signal) {
  return {
    client, me, gate, signal, say, try: (work, failed) => tryTo(work, failed, signal),
    may: (scope) => me.scopes.includes(/** @type {any} */ (scope)),
    go: (hash) => { location.hash = hash; },
    changed: () => lookAgain(),
    connection: (state) => {
      if (signal.aborted) return;
      clearTimeout(catchingUp);
      if (state === "catching up" && connection !== "reconnecting") catchingUp = setTimeout(() => setConnection(state), CATCHING_UP_MS);
      else setConnection(state);
    },
    title: (words) => {
      if (!signal.aborted) showTitle(words);
    },
    waiting: (count, more) => {
      waitingToldAt = Date.now();
      showWaiting(count, more);
    },
  };
}

function setConnection(/** @type {ConnectionState} */ state) {
  connection = state;
  showBanner();
}

function showTitle(words = title) {
  title = words;
  document.title = `${waitingCount ? `(${waitingCount}) ` : ""}${title ? `${title} · ` : ""}holdfast`;
}

function showWaiting(/** @type {number} */ count, /** @type {boolean} */ more) {
  waitingCount = count;
  showTitle();
  inboxCount.hidden = !count;
  replace(inboxCount, `${count}${more ? "+" : ""}`, h("span", { class: "sr" }, " wait for an answer"));
}

async function showPlace(/** @type {Me} */ me) {
  const place = placeOf(location.hash);
  leaving.abort();
  leaving = new AbortController();
  shown?.close?.();
  clearTimeout(catchingUp);
  connection = "live";
  crowded = false;
  showBanner();
  const context = contextFor(me, leaving.signal);
  root.dataset.place = place.path.length ? "view" : "list";
  for (const anchor of root.querySelectorAll(".places a")) {
    if (/** @type {HTMLElement} */ (anchor).dataset.place === place.path[0]) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  document.dispatchEvent(new CustomEvent("place", { detail: place }));
  try {
    const module = await VIEWS[nameOf(place)]();
    if (context.signal.aborted) return;
    shown = module.show(context, place);
  } catch (error) {
    if (context.signal.aborted) return;
    shown = { title: "Not loaded", element: broken(error) };
  }
  showTitle(shown.title);
  replace(main, shown.element);
}

function broken(/** @type {unknown} */ error) {
  return h("div", { class: "empty" }, h("h2", null, "This view could not be loaded"), h("p", null, plain(String(error))),
    h("button", { type: "button", class: "button", on: { click: () => location.reload() } }, "Load the page again"));
}

async function start() {
  let me;
  try {
    me = await client.me();
  } catch (error) {
    if (error instanceof Error && "status" in error && error.status === 401) location.assign("login");
    replace(root, broken(error));
    return;
  }
  const forever = new AbortController().signal;
  const list = chatList(contextFor(me, forever));
  replace(root, ...frame(me, list.element));
  const lookAtInbox = poll(INBOX_MS, async () => {
    if (Date.now() - waitingToldAt < INBOX_MS) return; // the view has just looked
    const { calls, next } = await client.openCalls({ limit: 100 }).catch(lookAtSession);
    if (loggedOut) {
      loggedOut = null;
      showBanner();
    }
    showWaiting(calls.length, next !== null);
  }, forever, { hiddenMs: INBOX_HIDDEN_MS });
  poll(HEALTH_MS, lookAtHealth, forever, { failedMs: HEALTH_AGAIN_MS });
  lookAgain = () => {
    list.look();
    lookAtInbox();
  };
  addEventListener("offline", () => {
    trouble = { words: OFFLINE, bad: true }; // until the next look at its health: when the network is back
    showBanner();
  });
  for (const event of ["dragover", "drop"]) addEventListener(event, (given) => given.preventDefault()); // a file beside the composer does not replace the page
  addEventListener("hashchange", () => void showPlace(me).then(() => main.focus({ preventScroll: true })));
  await showPlace(me);
}

void start();
