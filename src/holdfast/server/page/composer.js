/** Where people write: text that grows, files by button, drop and paste, a draft that outlives a reload. */

import { button, h, replace } from "./dom.js";
import { SlashMenu } from "./slash_menu.js";
import { bytes, plain } from "./words.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("../client/holdfast.js").Content} Content */
/** @typedef {"queue" | "steer" | "interrupt"} Mode */
/** @typedef {{ kind: "file", media_type: string, uri: string, name: string }} FilePart */

const FILES_MAX = 20;
const BYTES_MAX = 11_500_000; // of all files of a message: a request takes 16 MiB, and files grow by a third on the way

/**
 * @param {Context} context
 * @param {{ draft: string, agent: () => string | null, label: string, placeholder: string, send: (content: any, mode: Mode) => Promise<unknown> }} options
 */
export function composer(context, { draft, agent, label, placeholder, send }) {
  const stored = `holdfast.draft.${draft}`;
  const text = h("textarea", { class: "field", rows: 1, "aria-label": label, placeholder, data: { focus: "first" } });
  const slash = new SlashMenu(context, text, agent);
  const input = h("input", { type: "file", multiple: true, class: "sr", tabindex: "-1", "aria-hidden": "true" });
  const files = h("ul", { class: "attachments", "aria-label": "Attached files" });
  const go = h("button", { class: "button primary", type: "submit" }, "Send");
  const busyModes = h("span", { class: "row modes", hidden: true },
    button("Steer in", () => void submit("steer"), "quiet", { title: "Give it to the turn that goes on" }),
    button("Interrupt", () => void submit("interrupt"), "quiet", { title: "Cut the turn short and take this now" }));
  const extra = h("span", { class: "row" });
  /** @type {{ file: File, uri: string }[]} */
  let attached = [];
  let sending = false;

  text.value = sessionStorage.getItem(stored) ?? "";

  function grow() {
    text.style.height = "auto";
    text.style.height = `${Math.min(text.scrollHeight + 2, 280)}px`;
  }

  function showFiles() {
    files.hidden = !attached.length;
    replace(files, attached.map((one) => h("li", { class: "chip" },
      one.file.type.startsWith("image/") ? h("img", { src: one.uri, alt: "" }) : null,
      h("span", { class: "ellipsis" }, plain(one.file.name)), bytes(one.file.size),
      button("×", () => {
        attached = attached.filter((other) => other !== one);
        showFiles();
      }, "quiet", { "aria-label": `Remove ${plain(one.file.name)}` }))));
  }

  /** For a reload. A browser without room for it keeps none: what is written stays where it is written. */
  function keepDraft() {
    try {
      if (text.value) sessionStorage.setItem(stored, text.value);
      else sessionStorage.removeItem(stored);
    } catch {
      sessionStorage.removeItem(stored); // better none than an old one
    }
  }

  async function attach(/** @type {Iterable<File>} */ given) {
    for (const file of given) {
      const size = attached.reduce((sum, one) => sum + one.file.size, file.size);
      if (attached.length >= FILES_MAX || size > BYTES_MAX) {
        context.say(`${plain(file.name)} was not attached: a message takes ${FILES_MAX} files and ${bytes(BYTES_MAX)} in all.`, { bad: true });
        continue;
      }
      await context.try(async () => { attached = [...attached, { file, uri: await dataUri(file) }]; }, `${plain(file.name)} was not attached`);
    }
    showFiles();
  }

  /** @returns {string | (FilePart | { kind: "text", text: string })[]} */
  function content() {
    if (!attached.length) return text.value;
    const parts = attached.map(({ file, uri }) => /** @type {FilePart} */ ({
      kind: "file", media_type: file.type || "application/octet-stream", uri, name: file.name,
    }));
    return text.value.trim() ? [{ kind: "text", text: text.value }, ...parts] : parts;
  }

  async function submit(/** @type {Mode} */ mode) {
    if (sending || (!text.value.trim() && !attached.length)) return;
    sending = true;
    go.disabled = true;
    const [words, sent] = [text.value, attached];
    const done = await context.try(() => send(content(), mode), "It was not sent");
    sending = false;
    go.disabled = false;
    if (!done) return; // what was written stays
    text.value = text.value.startsWith(words) ? text.value.slice(words.length) : text.value; // what was written since stays
    attached = attached.filter((one) => !sent.includes(one));
    keepDraft();
    showFiles();
    grow();
    text.focus();
  }

  text.addEventListener("input", () => {
    keepDraft();
    grow();
  });
  text.addEventListener("keydown", (event) => {
    if (slash.key(event)) return;
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    void submit("queue");
  });
  text.addEventListener("paste", (event) => {
    const given = event.clipboardData?.files;
    if (!given?.length) return;
    event.preventDefault();
    void attach(given);
  });
  input.addEventListener("change", () => void attach(input.files ?? []).then(() => { input.value = ""; }));

  const element = h("form", { class: "composer", on: {
    submit: (/** @type {Event} */ event) => {
      event.preventDefault();
      void submit("queue");
    },
    dragover: (/** @type {DragEvent} */ event) => {
      event.preventDefault();
      element.classList.add("dropping");
    },
    dragleave: () => element.classList.remove("dropping"),
    drop: (/** @type {DragEvent} */ event) => {
      event.preventDefault();
      element.classList.remove("dropping");
      void attach(event.dataTransfer?.files ?? []);
    },
  } }, files, slash.element, text,
  h("div", { class: "row composer-foot" }, button("Attach", () => input.click(), "quiet"), input,
    h("span", { class: "muted small hint" }, h("kbd", null, "Enter"), " sends, ", h("kbd", null, "Shift Enter"), " breaks the line"),
    h("span", { class: "grow" }), busyModes, extra, go));
  showFiles();
  queueMicrotask(grow);
  return {
    element, extra, text,
    /** While a turn goes on, what is sent waits for it, unless it is steered in or interrupts. */
    busy(/** @type {boolean} */ busy) {
      busyModes.hidden = !busy;
      go.textContent = busy ? "Queue" : "Send";
    },
    /** Words that were not sent, before those that are there. */
    fill(/** @type {string} */ words) {
      text.value = text.value ? `${words}\n${text.value}` : words;
      keepDraft();
      grow();
      text.focus();
    },
  };
}

/** @returns {Promise<string>} */
function dataUri(/** @type {File} */ file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error ?? new Error("the file could not be read"));
    reader.readAsDataURL(file);
  });
}
