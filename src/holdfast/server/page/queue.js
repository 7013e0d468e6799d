/** What waits for its turn: edited, promoted, steered in or taken back by hand. */

import { asked, button, h, replace } from "./dom.js";
import { textOf } from "./message.js";
import { plain } from "./words.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("../client/holdfast.js").Chat} Chat */
/** @typedef {import("../client/holdfast.js").Schemas["QueuedShown"]} Queued */

export class QueueView {
  /** `rescue` is given words that were taken back and then refused: they are nowhere else. */
  constructor(/** @type {Context} */ context, /** @type {Chat} */ chat, /** @type {(words: string) => void} */ rescue) {
    this._context = context;
    this._rescue = rescue;
    this._chat = chat;
    /** @type {Set<string>} those that are shown */
    this._ids = new Set();
    this._looks = 0;
    this._list = h("ol", { class: "queue-list" });
    this._words = h("span", { class: "small muted" });
    this.element = h("section", { class: "queue", "aria-label": "Queued messages", hidden: true }, this._words, this._list);
  }

  show(/** @type {Queued[]} */ queue) {
    this._ids = new Set(queue.map(({ id }) => id));
    this.element.hidden = !queue.length;
    this._words.textContent = queue.length === 1 ? "1 message waits for its turn" : `${queue.length} messages wait for their turn`;
    replace(this._list, queue.map((queued) => this._line(queued)));
  }

  /** As the server has it now. */
  async look() {
    const look = ++this._looks;
    const { queue } = await this._chat.queue({ signal: this._context.signal });
    if (look === this._looks) this.show(queue); // an older answer tells of an older queue
  }

  /** A message has its turn: it waits no more. */
  took(/** @type {string} */ id) {
    if (this._ids.has(id)) void this.look().catch(() => {});
  }

  _line(/** @type {Queued} */ queued) {
    const words = textOf(/** @type {any} */ (queued.message));
    const change = (/** @type {() => Promise<unknown>} */ work, /** @type {string} */ failed) => void this._context.try(async () => {
      await work();
      await this.look();
    }, failed);
    return h("li", { data: { queued: queued.id } }, h("span", { class: "grow ellipsis" }, plain(words) || "(files)"),
      !this._context.may("chat") ? null : h("span", { class: "row" },
        button("Edit", () => void this._edit(queued, words), "quiet"),
        button("Now", () => change(() => this._chat.promote(queued.id), "It was not promoted"), "quiet", { title: "Take it next: what goes on is cut short" }),
        button("Steer in", () => change(() => this._steer(queued), "It was not steered in"), "quiet", { title: "Give it to the turn that goes on" }),
        button("Remove", () => change(() => this._chat.withdraw(queued.id), "It was not removed"), "quiet danger")));
  }

  /** Taken back, then sent anew: in between it is nowhere else than here, so it is sent until that is answered. */
  async _steer(/** @type {Queued} */ queued, mode = "steer", /** @type {any} */ content = contentOf(queued)) {
    await this._chat.withdraw(queued.id);
    try {
      await this._chat.send(content, { mode: /** @type {any} */ (mode) });
    } catch (error) {
      this._rescue(typeof content === "string" ? content : content.map((/** @type {any} */ part) => part.text ?? "").join(""));
      void this.look().catch(() => {});
      throw error;
    }
  }

  async _edit(/** @type {Queued} */ queued, /** @type {string} */ words) {
    const text = h("textarea", { class: "field", rows: 4, "aria-label": "The message" });
    text.value = words;
    if (!await asked({ title: "Edit the queued message", yes: "Save", fields: [text] }) || text.value === words) return;
    await this._context.try(async () => {
      await this._steer(queued, "queue", contentOf(queued, text.value));
      await this.look();
    }, "It was not changed");
  }
}

function contentOf(/** @type {Queued} */ queued, /** @type {string | null} */ words = null) {
  const parts = /** @type {any} */ (queued.message).parts;
  const files = parts.filter((/** @type {any} */ part) => part.kind === "file")
    .map((/** @type {any} */ { kind, media_type, uri, name }) => ({ kind, media_type, uri, ...(name ? { name } : {}) }));
  const text = words ?? textOf(/** @type {any} */ (queued.message));
  return files.length ? [...(text ? [{ kind: "text", text }] : []), ...files] : text;
}
