/** How many characters a text has. */
export function charsOf(text: string): number;
/** Where in a text its first so many characters end. */
export function indexOf(text: string, chars: number): number;
/** A text without its last so many characters: what a page does that is told `Restarted`. */
export function takeBack(text: string, chars: number): string;
/** @typedef {{ chars: number, digest: () => number[] }} Shown */
/** @typedef {{ dropped: number, rest: string, met: boolean }} Heard */
/** @type {Shown} */
export const NOTHING_SHOWN: Shown;
/** @type {Heard} */
export const NOTHING_HEARD: Heard;
/**
 * The text of a turn, or its reasoning: what was committed, what a reader was shown behind it, and how far the present
 * attempt has come in saying the same. What is to be added is added by the caller, by `add`.
 */
export class ShownWords {
    all: string;
    committed: number;
    _chars: number;
    _hash: Digest;
    /** @type {Shown | null} what was shown by another process, whatever it is */
    _unseen: Shown | null;
    _heard: string;
    _heardChars: number;
    _old: string;
    _said: number;
    /** @returns {Shown} */
    get shown(): Shown;
    /** Another process has shown this of the response that comes. */
    resume(shown: Shown): void;
    /** What is shown stays until this attempt says something else. */
    beginAttempt(): void;
    /** The attempt goes on with this piece. @returns {Heard} */
    hear(piece: string): Heard;
    /** This is what the response came to. `end` follows. @returns {Heard} */
    hearAll(text: string): Heard;
    add(piece: string): void;
    /** What is shown is committed; what comes next is another response's. */
    end(): void;
    /** What is said now is, or is not, what another process has shown, and more. @returns {Heard} */
    _meet(text: string): Heard;
    _forgetHeard(): void;
    /** Takes the end of it back; says how many characters that were. */
    _drop(length: number): number;
}
export type Shown = {
    chars: number;
    digest: () => number[];
};
export type Heard = {
    dropped: number;
    rest: string;
    met: boolean;
};
import { Digest } from "./digest.js";
