/** Files of messages and results: pictures as pictures, others as links that save them. */

import { button, h, replace } from "./dom.js";
import { bytes, plain } from "./words.js";

/** @typedef {import("../client/holdfast.js").Chat} Chat */
/** @typedef {{ media_type: string, uri: string, name?: string | null, size_bytes?: number | null }} FileShown */

/** What a browser shows as a picture and runs nothing of. */
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"]);

/** @returns {HTMLElement[]} */
export function pictures(/** @type {Chat} */ chat, /** @type {readonly FileShown[]} */ files) {
  return files.map((file) => {
    const name = plain(file.name ?? "file");
    const size = file.size_bytes ? `, ${bytes(file.size_bytes)}` : "";
    const place = h("figure", { class: "file" });
    const ours = file.uri.startsWith("holdfast:files/") || file.uri.startsWith("data:");
    if (PICTURES.has(file.media_type) && ours) void showPicture(chat, file, name, place);
    else replace(place, h("figcaption", { class: "row" }, h("span", { class: "mono" }, name), h("span", { class: "muted small" }, `${plain(file.media_type)}${size}`),
      ours ? saveButton(chat, file) : h("span", { class: "muted small break" }, plain(file.uri.slice(0, 200)))));
    return place;
  });
}

async function showPicture(/** @type {Chat} */ chat, /** @type {FileShown} */ file, /** @type {string} */ name, /** @type {HTMLElement} */ place) {
  try {
    const url = URL.createObjectURL(await chat.file(file));
    const picture = h("img", { alt: name, src: url, loading: "lazy", on: { load: () => URL.revokeObjectURL(url) } });
    replace(place, picture, h("figcaption", { class: "muted small" }, name));
  } catch {
    replace(place, h("figcaption", { class: "muted small" }, `${name} could not be loaded`));
  }
}

function saveButton(/** @type {Chat} */ chat, /** @type {FileShown} */ file) {
  const made = button("Save", () => void save(chat, file).then(() => { made.textContent = "Save"; }, () => { made.textContent = "Not saved: try again"; }), "quiet");
  return made;
}

/** A name that leads nowhere and does not look like another. */
function fileName(/** @type {string} */ name) {
  return plain(name).replace(/[\\/:*?"<>|]/g, "_").slice(0, 120) || "file";
}

async function save(/** @type {Chat} */ chat, /** @type {FileShown} */ file) {
  const url = URL.createObjectURL(new Blob([await chat.file(file)], { type: "application/octet-stream" }));
  h("a", { href: url, download: fileName(file.name ?? "file") }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
