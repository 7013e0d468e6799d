/**
 * The only way in which this page makes elements. What is given as words becomes text, never markup: there is no way from here
 * to a parser. Markup that the server has made goes through `html.js`.
 */

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, any>} Props */

/**
 * `on: { click: f }` listens, `data: { id }` sets data attributes; true is an attribute without a value; null and false are none.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props | null} [props]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, props, ...children) {
  return /** @type {any} */ (filled(document.createElement(tag), props, children));
}

/**
 * The same for pictures.
 * @param {string} tag
 * @param {Props | null} [props]
 * @param {...(Child | Child[])} children
 * @returns {SVGElement}
 */
export function s(tag, props, ...children) {
  return /** @type {SVGElement} */ (filled(document.createElementNS(SVG, tag), props, children));
}

function filled(/** @type {Element} */ made, /** @type {Props | null | undefined} */ props, /** @type {(Child | Child[])[]} */ children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, run] of Object.entries(value)) made.addEventListener(event, run);
    else if (name === "data") for (const [key, text] of Object.entries(value)) /** @type {HTMLElement} */ (made).dataset[key] = String(text);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...nodes(children));
  return made;
}

function nodes(/** @type {(Child | Child[])[]} */ children) {
  return children.flat().filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/** Its children, anew. @template {Element} E @param {E} element @param {...(Child | Child[])} children @returns {E} */
export function replace(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/** These children in this order. What is there already stays where it is, with its focus, and a click on it that goes on. */
export function arrange(/** @type {Element} */ element, /** @type {Element[]} */ children) {
  const wanted = new Set(children);
  for (const child of [...element.childNodes]) if (!wanted.has(/** @type {Element} */ (child))) child.remove();
  children.forEach((child, n) => {
    if (element.childNodes[n] !== child) element.insertBefore(child, element.childNodes[n] ?? null);
  });
}

/** A button of ours. */
export function button(
  /** @type {string} */ words, /** @type {(event: Event) => unknown} */ run, /** @type {string} */ kind = "", /** @type {Props} */ props = {},
) {
  return h("button", { type: "button", class: `button ${kind}`.trim(), on: { click: run }, ...props }, words);
}

/**
 * Asks a person, and waits for what they say. `fields` are put between words and buttons; resolves to whether the answer was yes.
 * @param {{ title: string, words?: string, yes: string, danger?: boolean, fields?: Child[] }} asked
 * @returns {Promise<boolean>}
 */
export function asked({ title, words, yes, danger = false, fields = [] }) {
  return new Promise((resolve) => {
    const cancel = button("Cancel", () => dialog.close(""));
    const form = h("form", { method: "dialog" },
      h("h2", { id: "dialog-title" }, title),
      words ? h("p", { class: "muted" }, words) : null,
      ...fields,
      h("div", { class: "row" }, cancel, h("button", { class: `button ${danger ? "danger" : "primary"}`, value: "yes" }, yes)));
    const dialog = h("dialog", { "aria-labelledby": "dialog-title", on: {
      close: () => {
        dialog.remove();
        resolve(dialog.returnValue === "yes");
      },
    } }, form);
    document.body.append(dialog);
    dialog.showModal();
  });
}
