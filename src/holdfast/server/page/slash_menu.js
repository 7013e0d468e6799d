/** What an agent's slash commands are, offered while `/` and the beginning of a name stand where people write: by hand and by keys. */

import { h, replace } from "./dom.js";
import { plain } from "./words.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("../client/holdfast.js").Schemas["SlashCommandShown"]} SlashCommand */

const SHOWN_MAX = 8;
const FRESH_MS = 30_000; // after which they are asked for again
const NAME = /^\/(\S*)$/;

/** How many lists were made: each has options with ids of their own. */
let made = 0;

export class SlashMenu {
  /** `agent`: whose they are; null: not known yet. */
  constructor(/** @type {Context} */ context, /** @type {HTMLTextAreaElement} */ text, /** @type {() => string | null} */ agent) {
    this._context = context;
    this._text = text;
    this._agent = agent;
    this._id = `slash-${++made}`;
    /** @type {{ agent: string, at: number, commands: Promise<SlashCommand[]> } | null} */
    this._known = null;
    /** @type {SlashCommand[]} those that are shown */
    this._shown = [];
    this._active = 0;
    this.element = h("ul", { class: "slash-menu", role: "listbox", id: this._id, "aria-label": "Slash commands", hidden: true });
    text.setAttribute("aria-autocomplete", "list");
    text.setAttribute("aria-controls", this._id);
    text.addEventListener("input", () => void this._look());
    text.addEventListener("blur", () => this._close());
  }

  /** Whether the key was for this list. */
  key(/** @type {KeyboardEvent} */ event) {
    if (this.element.hidden || event.isComposing) return false;
    const chosen = this._shown[this._active];
    if (event.key === "ArrowDown" || event.key === "ArrowUp") this._move(event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Escape") this._close();
    else if ((event.key === "Enter" && !event.shiftKey && this._text.value !== `/${chosen?.name}`) || (event.key === "Tab" && !event.shiftKey)) this._choose(chosen);
    else return false; // a name that is whole is sent by Enter
    event.preventDefault();
    return true;
  }

  async _look() {
    const begun = NAME.exec(this._text.value)?.[1];
    const agent = this._agent();
    if (begun === undefined || agent === null) return this._close();
    const commands = await this._commands(agent);
    if (NAME.exec(this._text.value)?.[1] !== begun || this._agent() !== agent) return; // it was written on meanwhile
    const [wanted, named] = [begun.toLowerCase(), (/** @type {SlashCommand} */ { name }) => name.toLowerCase()];
    const first = commands.filter((command) => named(command).startsWith(wanted));
    const others = commands.filter((command) => !first.includes(command) && named(command).includes(wanted));
    this._show([...first, ...others].slice(0, SHOWN_MAX));
  }

  /** @returns {Promise<SlashCommand[]>} none where they cannot be read: what is written is sent as it is */
  _commands(/** @type {string} */ agent) {
    if (this._known?.agent !== agent || Date.now() - this._known.at > FRESH_MS) {
      const { client, signal } = this._context;
      this._known = { agent, at: Date.now(), commands: client.slashCommands(agent, { signal }).catch(() => []) };
    }
    return this._known.commands;
  }

  _show(/** @type {SlashCommand[]} */ commands) {
    this._shown = commands;
    this._active = 0;
    this.element.hidden = !commands.length;
    if (this.element.hidden) return this._close();
    replace(this.element, commands.map((command, n) => h("li", { role: "option", id: `${this._id}-${n}`, on: {
      pointerdown: (/** @type {Event} */ event) => {
        event.preventDefault(); // the focus stays where one writes
        this._choose(command);
      },
    } }, h("span", { class: "mono ellipsis" }, `/${plain(command.name)}`), command.argument_hint ? h("span", { class: "muted small ellipsis" }, plain(command.argument_hint)) : null,
    h("span", { class: "muted small grow ellipsis" }, plain(command.description)))));
    this._move(0);
  }

  _move(/** @type {number} */ by) {
    this._active = (this._active + by + this._shown.length) % this._shown.length;
    [...this.element.children].forEach((option, n) => option.setAttribute("aria-selected", String(n === this._active)));
    this._text.setAttribute("aria-activedescendant", `${this._id}-${this._active}`);
    this.element.children[this._active]?.scrollIntoView({ block: "nearest" });
  }

  _choose(/** @type {SlashCommand | undefined} */ command) {
    this._close();
    if (!command) return;
    this._text.value = `/${command.name} `;
    this._text.dispatchEvent(new Event("input"));
  }

  _close() {
    this.element.hidden = true;
    this._text.removeAttribute("aria-activedescendant");
  }
}
