// Folds the journals of a file again, `node replay.js FILE`: each line is a list of what Python's fold was given and told.

import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import { createInterface } from "node:readline";

import { Fold } from "../../src/holdfast/server/client/fold.js";
import { cursorOf, parseCursor } from "../../src/holdfast/server/client/update_cursor.js";

/** As Python wrote it. */
function plain(update) {
  const { turn, ...rest } = update;
  const { number, state, cause, detail, error, retries, usage, cost, response, text, answer, reasoning, calls, open } = turn;
  return {
    ...rest,
    turn: { number, state, cause, detail, error, retries, usage, cost, response, text, answer, reasoning, calls, open },
  };
}

let fold;
let updates = 0;

function take(step) {
  if ("new" in step) fold = new Fold(step.new);
  else if ("resume" in step) {
    const { place, mark } = parseCursor(step.resume);
    fold.resume(mark, place);
  } else if ("again" in step) {
    const { place, mark } = parseCursor(step.again);
    assert.equal(cursorOf(place, mark), step.again);
  } else {
    const told = fold.take(step.take, step.cursor).map(plain);
    assert.deepEqual(told, step.told);
    updates += told.length;
  }
}

for await (const line of createInterface({ input: createReadStream(process.argv[2]) })) {
  for (const [n, step] of JSON.parse(line).entries()) {
    try {
      take(step);
    } catch (error) {
      error.message += `\nin step ${n}: ${JSON.stringify(step.take ?? step)}`;
      throw error;
    }
  }
}
process.stdout.write(JSON.stringify({ updates }));
