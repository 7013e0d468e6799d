/**
 * The demo's kill, started from the page: a chat with the agent `demo` makes another one, whose worker it kills in the middle
 * of its tools. That one's timeline shows it, live.
 */

/** @typedef {import("./app.js").Context} Context */

const CHAT = /chat_[0-9a-z]+/;

/** The chat that will lose its worker: the tool says it first. @returns {Promise<string>} its id */
export async function victimOf(/** @type {Context} */ { client, gate, signal }, /** @type {string} */ agent) {
  const chat = await client.create(agent, "Kill a worker in the middle of its tools.", { signal });
  for await (const update of chat.stream({ gate, signal })) {
    if (update.kind === "CallProgress") {
      const found = CHAT.exec(update.text);
      if (found) return found[0];
    }
    if (update.kind === "CallDone" && update.call.error) throw new Error(update.call.result ?? "its tool failed");
  }
  throw new Error("it said nothing of a chat");
}
