// What the page's timeline makes of journals, `node timeline.js FILE`. Each line of the file is a journal, with what the chat
// was at some of its places: the fold of `as_of.js` has to say the same there. Prints the picture of each.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { AsOfFold, asOf, forkPlace } from "../../src/holdfast/server/page/as_of.js";
import { Axis, lanesOf } from "../../src/holdfast/server/page/timeline_axis.js";
import { TimelineModel } from "../../src/holdfast/server/page/timeline_model.js";

/** As Python wrote it down. */
function shown(value, moment) {
  const calls = Object.fromEntries(value.calls.map((call) => [call.id, call.state]));
  const messages = value.messages.map(({ pos, message }) => [pos, message.id]);
  const found = { messages, calls, queue: value.queue.map((queued) => queued.message.id), length: value.length };
  return moment.state === null ? { ...found, state: null } : { ...found, state: value.state };
}

function checkMoments(entries, moments) {
  const fold = new AsOfFold();
  let taken = 0;
  for (const { seq, ...moment } of moments) {
    while (taken < seq) fold.take(entries[taken++]);
    assert.deepEqual(shown(fold.value, moment), moment, `as of ${seq}`);
    assert.deepEqual(shown(asOf(entries, seq), moment), moment, `as of ${seq}, from the beginning`);
  }
}

function check(picture, model, now) {
  const seqs = new Set(model.entries.map((entry) => entry.seq));
  const ids = picture.spans.map((span) => span.id);
  assert.equal(new Set(ids).size, ids.length, `one id is two spans': ${ids}`);
  for (const span of picture.spans) {
    assert.ok(span.from <= (span.until ?? now), `${span.id} ends before it begins`);
    assert.ok(span.seqs.length && span.seqs.every((seq) => seqs.has(seq)), `${span.id} has no entries`);
    assert.ok(model.entriesOf(span).length, `${span.id} shows none`);
  }
  const axis = new Axis(picture, now);
  for (const { at } of model.entries) assert.ok(Math.abs(axis.atOf(axis.xOf(at)) - at) < 1, "there and back");
  for (const lane of lanesOf(picture, now)) {
    for (const row of lane.rows) row.slice(1).forEach((span, n) => assert.ok((row[n].until ?? now) <= span.from, "none covers another"));
  }
}

const pictures = [];
for (const line of readFileSync(process.argv[2], "utf-8").trim().split("\n")) {
  const { events, moments, now, at_rest: atRest } = JSON.parse(line);
  const model = new TimelineModel();
  const told = [];
  for (const [n, { cursor, ...data }] of events.entries()) {
    model.take(data, cursor ?? String(n));
    if (data.kind !== "delta") told.push({ ...data, cursor: String(n) });
  }
  const picture = model.picture(now);
  check(picture, model, now);
  if (atRest) assert.deepEqual(picture.spans.filter((span) => span.until === null).map((span) => span.id), [], "over");
  checkMoments(told, moments ?? []);
  pictures.push({
    spans: picture.spans.map(({ hold, ...span }) => ({ ...span, worker: hold?.worker ?? null })),
    marks: picture.marks,
    lanes: lanesOf(picture, now).map((lane) => lane.title),
    forks: told.map((entry) => forkPlace(told, asOf(told, entry.seq))),
    width: new Axis(picture, now).width,
  });
}
process.stdout.write(JSON.stringify(pictures));
