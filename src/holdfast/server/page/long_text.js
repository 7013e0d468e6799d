/** Text that nobody knows the length of: its beginning, then more by hand, or the whole as a file. Never markup. */

import { button, h } from "./dom.js";
import { bytes } from "./words.js";

const FIRST_CHARS = 4000;
const MORE_CHARS = 100_000;

/** `kind`: a class for the `pre`. */
export function longText(/** @type {string} */ text, kind = "") {
  const shown = h("pre", { class: `long ${kind}`.trim(), tabindex: "0", dir: "auto" }, text.slice(0, FIRST_CHARS));
  if (text.length <= FIRST_CHARS) return shown;
  let upto = FIRST_CHARS;
  const rest = h("span", { class: "muted small" });
  const more = button("Show more", () => {
    shown.append(text.slice(upto, upto + MORE_CHARS));
    upto = Math.min(text.length, upto + MORE_CHARS);
    tell();
  }, "quiet");
  const foot = h("div", { class: "row" }, rest, more, button("Download", () => download(text), "quiet"));

  function tell() {
    rest.textContent = `${upto.toLocaleString()} of ${text.length.toLocaleString()} characters`;
    more.hidden = upto >= text.length;
  }

  tell();
  return h("div", null, shown, foot);
}

function download(/** @type {string} */ text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  h("a", { href: url, download: "text.txt" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** A button that copies what `text` says at that moment. */
export function copyButton(/** @type {() => string} */ text, words = "Copy") {
  const made = button(words, async () => {
    try {
      await navigator.clipboard.writeText(text());
      made.textContent = "Copied";
    } catch {
      made.textContent = "Not copied";
    }
    setTimeout(() => { made.textContent = words; }, 1500);
  }, "quiet copy");
  return made;
}

/** How large a text is. */
export function sizeOf(/** @type {string} */ text) {
  return bytes(text.length);
}
