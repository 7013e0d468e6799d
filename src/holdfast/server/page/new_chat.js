/** A new chat: an agent, and the first message. */

import { composer } from "./composer.js";
import { button, h, replace } from "./dom.js";
import { link } from "./router.js";
import { victimOf } from "./watch_kill.js";
import { plain, problemWords } from "./words.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("../client/holdfast.js").Schemas["AgentShown"]} Agent */

const CHOSEN = "holdfast.agent"; // in the browser's storage: the agent that was chosen last
const DEMO = "demo"; // the agent that shows a kill, where the server has it

/** @returns {import("./app.js").View} */
export function show(/** @type {Context} */ context) {
  const body = h("div", null, h("p", { class: "empty" }, "Loading…"));
  void fill(context, body);
  return { title: "New chat", element: h("div", { class: "view new-chat" }, body) };
}

async function fill(/** @type {Context} */ context, /** @type {HTMLElement} */ body) {
  if (!context.may("chat")) {
    replace(body, h("div", { class: "empty" }, h("h2", null, "Choose a chat"), h("p", null, "Your token lets you read. Chats are on the left.")));
    return;
  }
  /** @type {Agent[]} */
  let agents;
  try {
    agents = await context.client.agents({ signal: context.signal });
  } catch (error) {
    replace(body, h("div", { class: "empty" }, h("h2", null, "The agents could not be read"), h("p", null, problemWords(error))));
    return;
  }
  if (!agents.length) {
    replace(body, h("div", { class: "empty" }, h("h2", null, "This server has no agents"), h("p", null, "Start it with an app that has some: holdfast serve support:app")));
    return;
  }
  replace(body, ...parts(context, agents));
}

function parts(/** @type {Context} */ context, /** @type {Agent[]} */ agents) {
  const talking = agents.filter(({ name }) => name !== DEMO);
  const known = localStorage.getItem(CHOSEN);
  const picker = h("select", { class: "field", id: "agent" }, talking.map(({ name }) => h("option", { value: name, selected: name === known }, plain(name))));
  const about = h("p", { class: "muted small about" });

  function tell() {
    const agent = talking.find(({ name }) => name === picker.value);
    localStorage.setItem(CHOSEN, picker.value);
    if (agent) replace(about, plain(agent.model), agent.tools.length ? ` · tools: ${agent.tools.map(plain).join(", ")}` : " · no tools");
  }

  picker.addEventListener("change", tell);
  tell();
  const written = composer(context, {
    draft: "new", agent: () => picker.value, label: "Your message", placeholder: "What should it do?",
    send: async (content) => {
      const chat = await context.client.create(picker.value, content);
      context.changed();
      context.go(link("chats", chat.id));
    },
  });
  return [
    h("div", { class: "row" }, h("a", { class: "button quiet menu-button", href: "#/" }, "Menu"), h("h1", null, "What should be done?")),
    h("div", { class: "row picker" }, h("label", { for: "agent" }, "Agent"), picker),
    about,
    written.element,
    agents.length > talking.length && context.me.operates ? demo(context) : null,
  ].filter((part) => part !== null);
}

function demo(/** @type {Context} */ context) {
  const watch = button("Watch a kill", async () => {
    watch.disabled = true;
    const done = await context.try(async () => {
      const victim = await victimOf(context, DEMO);
      context.changed();
      context.go(link("chats", victim, "timeline"));
    }, "The demo could not be started");
    watch.disabled = done;
  });
  return h("div", { class: "card demo" }, h("h2", null, "Kill it and watch"),
    h("p", { class: "muted" }, "A worker is killed with -9 in the middle of three tools, and another goes on. See in the timeline what was durable, what ran again, and what did not."),
    watch);
}
