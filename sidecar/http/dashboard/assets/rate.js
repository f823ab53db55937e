// Tokens a second: the large figure, and the last two minutes.

import { byId, count, Drawing, duration, element, percent, picture, plural, rate, shape, steps } from "./dom.js";

const SECONDS = 120;
const BUCKET = 0.5;
const HEIGHT = 128;
const LEFT = 36;

export class Rate {
  #tokens = new Map();
  #last = null;
  #clock = 0;
  #drawing = new Drawing(byId("rate-chart"), (width) => this.#draw(width));
  #timer = null;

  /** A new daemon: what was drawn is not its. */
  clear() {
    this.#tokens.clear();
    this.#last = null;
  }

  /** committed: tokens up to `time` (the daemon's, Unix). */
  add(time, committed) {
    this.#clock = time - performance.now() / 1e3;
    if (committed > 0) {
      const bucket = Math.floor(time / BUCKET);
      this.#tokens.set(bucket, (this.#tokens.get(bucket) ?? 0) + committed);
      this.#timer ??= setInterval(() => this.#tick(), 1e3 * BUCKET);
    }
  }

  ended(past) {
    if (past.decode_ms > 0 && past.tokens > 1) this.#last = (1e3 * (past.tokens - 1)) / past.decode_ms;
  }

  #now() {
    return this.#clock + performance.now() / 1e3;
  }

  #tick() {
    if (document.hidden) return;
    this.show();
    if (this.#tokens.size === 0) {
      clearInterval(this.#timer);
      this.#timer = null;
    }
  }

  show(running = this.running ?? 0) {
    this.running = running;
    const bucket = Math.floor(this.#now() / BUCKET);
    for (const old of this.#tokens.keys()) if (old < bucket - SECONDS / BUCKET) this.#tokens.delete(old);
    const lately = (this.#tokens.get(bucket - 1) ?? 0) + (this.#tokens.get(bucket - 2) ?? 0);
    const live = lately > 0 && running > 0;
    const shown = live ? lately / (2 * BUCKET) : this.#last;
    byId("rate").textContent = shown === null ? "\u2013" : rate(shown);
    let said = `idle; the last reply ran at this speed`;
    if (live) said = `decoding ${plural(running, "request")}`;
    else if (running > 0) said = `${plural(running, "request")} at its prompt or waiting`;
    else if (shown === null) said = "no request yet";
    byId("rate-note").textContent = said;
    this.#drawing.update();
  }

  #draw(width) {
    // The bucket that is still being filled would look like a fall.
    const end = Math.floor(this.#now() / BUCKET) - 1;
    const buckets = SECONDS / BUCKET;
    const rates = Array.from({ length: buckets + 1 }, (_, index) => {
      const at = end - buckets + index;
      return (this.#tokens.get(at) ?? 0) / BUCKET;
    });
    const most = Math.max(...rates);
    const axis = steps(most || 100, 2);
    const top = axis.at(-1);
    const right = width - 2;
    const bottom = HEIGHT - 20;
    const x = (index) => LEFT + ((right - LEFT) * index) / buckets;
    const y = (value) => bottom - ((bottom - 8) * value) / top;
    const grid = axis.map((value) => [
      shape("line", { class: value ? "grid" : "axis", x1: LEFT, x2: right, y1: y(value), y2: y(value) }),
      shape("text", { x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, count(value)),
    ]);
    const points = rates.map((value, index) => `${x(index).toFixed(1)} ${y(value).toFixed(1)}`);
    const marks =
      most > 0
        ? [
            shape("path", { class: "area", d: `M${LEFT} ${bottom}L${points.join("L")}L${right} ${bottom}Z` }),
            shape("path", { class: "line", d: `M${points.join("L")}` }),
          ]
        : [];
    const said = most > 0 ? `Tokens a second in the last two minutes, at most ${count(most)}.` : "No tokens in the last two minutes.";
    return picture(
      width,
      HEIGHT,
      said,
      grid,
      marks,
      shape("text", { x: LEFT, y: HEIGHT - 3 }, "2 min ago"),
      shape("text", { x: right, y: HEIGHT - 3, "text-anchor": "end" }, "now"),
    );
  }
}

/** What the daemon did since it began. */
export function showFacts(status) {
  const { totals, regimes } = status;
  const drafts = totals.accepted + totals.rejected;
  const saved = regimes.reduce((sum, regime) => sum + regime.saved, 0);
  const decoded = regimes.reduce((sum, regime) => sum + regime.seconds, 0);
  const fact = (name, value, note) => [
    element("dt", {}, name),
    element("dd", {}, value, element("small", {}, note)),
  ];
  const pairs = [
    fact(
      "Saved by drafting",
      decoded ? duration(saved) : "\u2013",
      decoded ? `${percent(saved / (decoded + saved))} of target-only time` : "nothing decoded yet",
    ),
    fact(
      "Drafts accepted",
      drafts ? percent(totals.accepted / drafts) : "\u2013",
      drafts ? `${count(totals.accepted)} of ${count(drafts)}` : "none drafted yet",
    ),
    fact(
      "Prompt tokens from cache",
      totals.prompt_tokens ? percent(totals.cached_tokens / totals.prompt_tokens) : "\u2013",
      totals.prompt_tokens ? `${count(totals.cached_tokens)} of ${count(totals.prompt_tokens)}` : "no prompt yet",
    ),
    fact(
      "Requests",
      count(totals.requests),
      [`${count(totals.completion_tokens)} tokens`, totals.cancelled && `${count(totals.cancelled)} cancelled`, totals.failed && `${count(totals.failed)} failed`].filter(Boolean).join(", "),
    ),
  ];
  byId("facts").replaceChildren(...pairs.map((pair) => element("div", {}, pair)));
}
