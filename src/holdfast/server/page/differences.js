/** What an edit changes, line by line: of the arguments of the tools that change files. Pure, but for the elements it makes. */

import { h } from "./dom.js";
import { plain } from "./words.js";

const LINES_MAX = 400;
const WORK_MAX = 1_000_000; // comparisons, beyond which all old lines go and all new ones come

/** @typedef {["same" | "gone" | "come", string]} Line */

/** The shortest way from one text to the other, by lines. @returns {Line[]} */
export function linesChanged(/** @type {string} */ before, /** @type {string} */ after) {
  const [old, now] = [before.split("\n"), after.split("\n")];
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head += 1;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && old[old.length - 1 - tail] === now[now.length - 1 - tail]) tail += 1;
  const [a, b] = [old.slice(head, old.length - tail), now.slice(head, now.length - tail)];
  const between = a.length * b.length > WORK_MAX ? [...gone(a), ...come(b)] : walked(a, b);
  return [...same(old.slice(0, head)), ...between, ...same(old.slice(old.length - tail))];
}

const same = (/** @type {string[]} */ lines) => lines.map((line) => /** @type {Line} */ (["same", line]));
const gone = (/** @type {string[]} */ lines) => lines.map((line) => /** @type {Line} */ (["gone", line]));
const come = (/** @type {string[]} */ lines) => lines.map((line) => /** @type {Line} */ (["come", line]));

/** By the longest common lines. @returns {Line[]} */
function walked(/** @type {string[]} */ a, /** @type {string[]} */ b) {
  const width = b.length + 1;
  const longest = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      longest[i * width + j] = a[i] === b[j] ? longest[(i + 1) * width + j + 1] + 1 : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  /** @type {Line[]} */
  const found = [];
  let [i, j] = [0, 0];
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      found.push(["same", a[i]]);
      i += 1;
      j += 1;
    } else if (longest[(i + 1) * width + j] >= longest[i * width + j + 1]) found.push(["gone", a[i++]]);
    else found.push(["come", b[j++]]);
  }
  return [...found, ...gone(a.slice(i)), ...come(b.slice(j))];
}

/**
 * What the call would change, ready to be shown; null: it is no edit that is known here.
 * @returns {HTMLElement | null}
 */
export function difference(/** @type {string} */ name, /** @type {string} */ text) {
  /** @type {any} */
  let given;
  try {
    given = JSON.parse(text);
  } catch {
    return null;
  }
  if (given === null || typeof given !== "object") return null;
  if (name === "apply_patch" && typeof given.patch === "string") return block("", given.patch.split("\n").map(patchLine));
  if (typeof given.path !== "string") return null;
  if (name === "write_file" && typeof given.content === "string") return block(given.path, come(given.content.split("\n")));
  if (name !== "edit_file") return null;
  const edits = Array.isArray(given.edits) ? given.edits : [given];
  const pairs = edits.filter((/** @type {any} */ edit) => edit && typeof edit.old === "string" && typeof edit.new === "string");
  return pairs.length ? block(given.path, pairs.flatMap((/** @type {any} */ edit) => linesChanged(edit.old, edit.new))) : null;
}

/** @returns {Line} */
function patchLine(/** @type {string} */ line) {
  return line.startsWith("+") ? ["come", line.slice(1)] : line.startsWith("-") ? ["gone", line.slice(1)] : ["same", line];
}

const MARKS = { same: " ", gone: "−", come: "+" };

function block(/** @type {string} */ path, /** @type {Line[]} */ lines) {
  const rest = lines.length - LINES_MAX;
  return h("figure", { class: "difference" }, path ? h("figcaption", { class: "mono" }, plain(path)) : null,
    h("pre", { tabindex: "0" }, lines.slice(0, LINES_MAX).map(([kind, line]) =>
      h("span", { class: `line ${kind}` }, h("span", { class: "mark", "aria-hidden": "true" }, MARKS[kind]),
        kind === "same" ? null : h("span", { class: "sr" }, kind === "gone" ? "removed: " : "added: "), `${line}\n`)),
    rest > 0 ? h("span", { class: "line muted" }, `… ${rest} more lines`) : null));
}
