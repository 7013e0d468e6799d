// Reads one turn as a page would that keeps a text of its own, and leaves and comes back now and then. Run by Node, and by
// Chromium, where Playwright brings it in as text.

export async function readTurn({ takeBack }, chat, { leaves, settled, say }) {
  const seen = { left: 0 };
  let shown = "";
  let after = null;
  for (;;) {
    let left = false;
    for await (const update of chat.stream({ after, settled })) {
      after = update.cursor;
      seen[update.kind] = (seen[update.kind] ?? 0) + 1;
      if (update.kind === "TextAdded") shown += update.text;
      if (update.kind === "Restarted") shown = takeBack(shown, update.dropped);
      say(update.kind);
      if (update.kind === "Finished") return { shown, text: update.turn.text, seen };
      left = Math.random() < leaves;
      if (left) break;
    }
    if (!left) throw new Error("the chat rests, and the reader was not told that the turn is over");
    seen.left += 1;
  }
}
