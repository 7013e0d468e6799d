/**
 * The only place where markup enters the page: HTML that the server made of a model's markdown and has cleaned. It comes through
 * the one Trusted Types policy that the page is allowed, into a document of its own that loads and runs nothing, and is checked
 * again there, element by element: what is not on the list becomes its own text.
 */

const TAGS = new Set(["P", "BR", "HR", "H1", "H2", "H3", "H4", "H5", "H6", "STRONG", "EM", "S", "DEL", "CODE", "PRE", "BLOCKQUOTE",
  "UL", "OL", "LI", "A", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD", "SPAN"]);
/** @type {Record<string, RegExp>} */
const ATTRIBUTES = { href: /^(https?:|mailto:)/i, title: /^/, start: /^\d+$/, class: /^[a-z][a-z0-9]{0,2}$/ };
const CODE = "hl-"; // before a class of coloured code: none of them is one of the page's own, which would hide it or look like a button

/** @type {any} */
const policy = "trustedTypes" in window
  ? /** @type {any} */ (window).trustedTypes.createPolicy("holdfast", { createHTML: (/** @type {string} */ html) => html })
  : { createHTML: (/** @type {string} */ html) => html };

/** What it becomes, ready to be shown. @returns {DocumentFragment} */
export function fragmentOf(/** @type {string} */ html) {
  const template = document.createElement("template");
  template.innerHTML = policy.createHTML(html);
  for (const element of [...template.content.querySelectorAll("*")]) clean(element);
  return document.importNode(template.content, true);
}

function clean(/** @type {Element} */ element) {
  if (!TAGS.has(element.tagName)) {
    element.replaceWith(document.createTextNode(element.textContent ?? ""));
    return;
  }
  for (const { name, value } of [...element.attributes]) {
    if (!Object.hasOwn(ATTRIBUTES, name) || !ATTRIBUTES[name].test(value)) element.removeAttribute(name);
    else if (name === "class") element.className = CODE + value;
  }
  if (element.tagName === "A") {
    element.setAttribute("target", "_blank");
    element.setAttribute("rel", "noopener noreferrer nofollow");
  }
}

/** Shows it in place of what the element has. */
export function setHtml(/** @type {Element} */ element, /** @type {string} */ html) {
  element.replaceChildren(fragmentOf(html));
}
