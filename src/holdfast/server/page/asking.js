/** What a person is asked, and the buttons to answer it. The same in a chat and in the inbox. */

import { button, h } from "./dom.js";
import { longText } from "./long_text.js";
import { plain } from "./words.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("../client/holdfast.js").Chat} Chat */
/** @typedef {import("../client/holdfast.js").CallView} CallView */

export function askingCard(
  /** @type {Context} */ context, /** @type {Chat} */ chat, /** @type {CallView} */ call, /** @type {{ onanswered?: () => void }} */ { onanswered } = {},
) {
  const answer = (/** @type {() => Promise<unknown>} */ work) => void context.try(async () => {
    await work();
    onanswered?.();
  }, "It was not answered");
  const words = h("p", null, plain(call.question ?? `${call.name} wants to run`));
  if (call.kind === "question") {
    const field = h("input", { class: "field", "aria-label": "Your answer" });
    return h("form", { class: "asked", on: { submit: (/** @type {Event} */ event) => {
      event.preventDefault();
      answer(() => chat.answer(call, field.value));
    } } }, words, h("div", { class: "row" }, field, h("button", { class: "button primary" }, "Answer")));
  }
  return h("div", { class: "asked" }, words, call.arguments ? longText(call.arguments) : null,
    context.may("approve") ? h("div", { class: "row" },
      button("Approve", () => answer(() => chat.approve(call)), "primary"),
      button("Deny", () => answer(() => chat.deny(call)), "danger")) : null);
}
