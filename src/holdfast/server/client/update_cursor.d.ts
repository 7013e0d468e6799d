/** One opaque text. */
export function cursorOf(place: string, mark: Mark): string;
/**
 * The server's part, and the mark; null: it is not an update's, but an event's.
 * @returns {{ place: string, mark: Mark | null }}
 */
export function parseCursor(cursor: string): {
    place: string;
    mark: Mark | null;
};
/** @type {Mark} */
export const NO_MARK: Mark;
export type Shown = import("./shown_words.js").Shown;
export type Mark = {
    /**
     * the number of the line that began the turn; 0: none did
     */
    turn: number;
    /**
     * updates of the line after the place that were told, those of text not counted
     */
    told: number;
    text: Shown;
    reasoning: Shown;
    /**
     * an attempt, and how many of the calls that it writes were told
     */
    drafts: [number, number];
};
