/** Small pictures of figures as they change: a line for the last minutes, the value now, the most of it. */

import { h, replace, s } from "./dom.js";

const WIDTH = 240;
const HEIGHT = 44;
const SAMPLES_MAX = 90;

/** The line through these values, and the area below it, as paths in a box. Pure. */
export function pathsOf(/** @type {number[]} */ values, /** @type {number} */ most, width = WIDTH, height = HEIGHT, samples = SAMPLES_MAX) {
  if (!values.length) return { line: "", area: "" };
  const step = width / (samples - 1);
  const left = width - (values.length - 1) * step;
  const points = values.map((value, n) => [left + n * step, height - 2 - (Math.max(0, value) / (most || 1)) * (height - 6)]);
  const line = points.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  return { line, area: `${line}L${width} ${height}L${left.toFixed(1)} ${height}Z` };
}

/** One figure over time. */
export class Spark {
  /**
   * @param {string} label
   * @param {string} unit
   * @param {(value: number) => string} words the value, without it
   * @param {{ tone?: string, least?: number }} [options] `least`: what the top of the picture is at least
   */
  constructor(label, unit, words, { tone = "", least = 1 } = {}) {
    this._label = label;
    this._words = words;
    this._unit = unit;
    this._least = least;
    /** @type {number[]} */
    this._values = [];
    this._now = h("span", { class: "spark-now" }, "–");
    this._most = h("span", { class: "muted small" }, "looking…");
    this._line = s("path", { class: "spark-line" });
    this._area = s("path", { class: "spark-area" });
    this._picture = s("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      this._area, this._line);
    this.element = h("figure", { class: `card spark-card ${tone}`.trim() },
      h("figcaption", { class: "muted small" }, label), this._now, this._picture, this._most);
  }

  /** One more; null: it is not known now. */
  add(/** @type {number | null} */ value) {
    if (value === null || !Number.isFinite(value)) {
      this._now.textContent = "–";
      return;
    }
    this._values.push(value);
    if (this._values.length > SAMPLES_MAX) this._values.shift();
    const peak = Math.max(...this._values);
    const { line, area } = pathsOf(this._values, Math.max(peak, this._least));
    this._line.setAttribute("d", line);
    this._area.setAttribute("d", area);
    replace(this._now, this._words(value), " ", h("span", { class: "spark-unit" }, this._unit));
    this._most.textContent = `at most ${this._words(peak)}`;
    this._picture.setAttribute("aria-label", `${this._label}: ${this._words(value)} ${this._unit} now, at most ${this._words(peak)} while this page looks`);
  }
}

/** How fast something that is counted goes, by the count and the instant of two looks. */
export class Rate {
  constructor() {
    /** @type {{ count: number, at: number } | null} */
    this._before = null;
  }

  /** For each second; null where it is not known yet. A count that went back began anew. */
  at(/** @type {number | null} */ count, /** @type {number} */ at) {
    const before = this._before;
    this._before = count === null ? null : { count, at };
    if (count === null || before === null || at <= before.at || count < before.count) return null;
    return ((count - before.count) * 1000) / (at - before.at);
  }
}

/** How far something is on its way to a limit. */
export function meter(/** @type {number} */ value, /** @type {number} */ most, /** @type {string} */ label) {
  const part = most > 0 ? Math.min(1, Math.max(0, value / most)) : 0;
  const fill = h("span", { class: `meter-fill ${part >= 0.9 ? "bad" : part >= 0.7 ? "warn" : ""}`.trim() });
  fill.style.setProperty("--part", `${Math.round(part * 100)}%`);
  return h("span", { class: "meter", role: "img", "aria-label": label }, fill);
}
