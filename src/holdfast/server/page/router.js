/** Places behind the hash of the address, so that the page works wherever the server is mounted, and each has a link. */

/** @typedef {{ path: string[], query: URLSearchParams }} Place */

/** @returns {Place} */
export function placeOf(/** @type {string} */ hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

function decoded(/** @type {string} */ part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a place: `link("chats", id)`. */
export function link(/** @type {string[]} */ ...path) {
  return `#/${path.map(encodeURIComponent).join("/")}`;
}
