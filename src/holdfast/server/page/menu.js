/** A button that opens a list of things to do: by hand and by keys, Escape closes it, and so does going elsewhere. */

import { button, h } from "./dom.js";

/** @typedef {(words: string, run: () => unknown, kind?: string) => HTMLElement} Item makes one that closes the menu and does it */

/** `made` makes what is in it. */
export function menu(/** @type {(item: Item) => Node[]} */ made) {
  /** @type {Item} */
  const item = (words, run, kind = "") => button(words, () => {
    menu.open = false;
    summary.focus(); // a dialog gives the focus back to where it was
    run();
  }, `quiet ${kind}`);
  const summary = h("summary", { class: "button quiet", "aria-label": "More" }, "⋯");
  const menu = h("details", { class: "menu", on: {
    keydown: (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Escape" || !menu.open) return;
      menu.open = false;
      summary.focus();
    },
    focusout: (/** @type {FocusEvent} */ event) => {
      if (event.relatedTarget && !menu.contains(/** @type {Node} */ (event.relatedTarget))) menu.open = false;
    },
  } }, summary, h("div", { class: "menu-items" }, made(item)));
  return menu;
}
