/** The digest of a text that grows. A copy goes on by itself. */
export class Digest {
    constructor(text?: string);
    _state: Uint32Array<ArrayBuffer>;
    _block: Uint8Array<ArrayBuffer>;
    _filled: number;
    _length: number;
    copy(): Digest;
    update(piece: string): void;
    /** Of what it was given so far; it can be given more. */
    bytes(): number[];
    _compress(last: boolean): void;
}
