// `node reader.js URL TOKEN CHAT LEAVES live|settled`: reads a turn, says each update by its kind and, at the end, what it
// shows, one line of JSON each.

import * as holdfast from "../../src/holdfast/server/client/holdfast.js";
import { readTurn } from "./read_turn.js";

const [url, token, id, leaves, how] = process.argv.slice(2);
const chat = new holdfast.Holdfast({ url, token }).chat(id);
const say = (told) => process.stdout.write(`${JSON.stringify(told)}\n`);
say(await readTurn(holdfast, chat, { leaves: Number(leaves), settled: how === "settled", say }));
