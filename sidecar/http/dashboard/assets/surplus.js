// What drafting gained or lost: by kind of text, and reply by reply.

import {
  byId, cell, coloured, count, decimal, Drawing, duration, element, empty, key, legend, percent, picture, rate,
  REGIME_ORDER, regimeColour, regimeName, shape, signed, steps, table,
} from "./dom.js";

const HEIGHT = 150;
const LEFT = 40;
const byOrder = (one, other) => REGIME_ORDER.indexOf(one.regime) - REGIME_ORDER.indexOf(other.regime);

export function showRegimes(regimes) {
  if (regimes.length === 0) {
    byId("regimes").replaceChildren(empty("Nothing was decoded yet."));
    return;
  }
  const most = Math.max(...regimes.map((regime) => Math.abs(regime.surplus_ms)), 1e-9);
  const least = Math.min(0, ...regimes.map((regime) => regime.surplus_ms));
  const rows = [...regimes].sort(byOrder).map((regime) => {
    const undrafted = Object.values(regime.target_only).reduce((sum, seconds) => sum + seconds, 0);
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, key(regimeColour(regime.regime)), regimeName(regime.regime)),
      cell("bar", gauge(regime, most, least)),
      cell("n", element("span", { class: regime.surplus_ms < 0 ? "loss" : "" }, `${signed(regime.surplus_ms, 2)} ms`)),
      cell("n", `${rate(regime.tok_s)} tok/s`),
      cell("n", percent(regime.seconds ? 1 - undrafted / regime.seconds : 0)),
    );
  });
  const heads = [["Text"], ["Saved a token", "bar", 2], ["Speed", "n"], ["Time drafting", "n"]];
  byId("regimes").replaceChildren(element("div", { class: "scroll" }, table("Surplus by kind of text", heads, rows)));
}

function gauge(regime, most, least) {
  const zero = least < 0 ? 100 * (-least / (most - least)) : 0;
  const size = ((100 - zero) * Math.abs(regime.surplus_ms)) / most;
  const x = regime.surplus_ms < 0 ? Math.max(zero - size, 0) : zero;
  return shape(
    "svg",
    { width: "100%", height: 14, "aria-hidden": true },
    coloured("rect", regime.surplus_ms < 0 ? "bad" : regimeColour(regime.regime), {
      x: `${x}%`, y: 1, width: `${Math.max(size, 0.4)}%`, height: 12, rx: 1.5,
    }),
    shape("line", { class: "zero", x1: `${zero}%`, x2: `${zero}%`, y1: -3, y2: 17 }),
  );
}

export class Timeline {
  #past = [];
  #drawing = new Drawing(byId("surplus-timeline"), (width) => this.#draw(width));

  show(past) {
    this.#past = past.filter((request) => request.tokens > 1 && request.regimes.length > 0).slice(-50);
    this.#drawing.update();
  }

  #draw(width) {
    if (this.#past.length === 0) return empty("No reply yet.");
    const bars = this.#past.map((request) => stack(request));
    const high = Math.max(...bars.map((one) => one.above), 0);
    const low = Math.max(...bars.map((one) => one.below), 0);
    const axis = steps(Math.max(high, low, 0.05), 2);
    const step = axis[1];
    const top = Math.ceil(high / step - 1e-9) * step || step;
    const floor = Math.ceil(low / step - 1e-9) * step;
    const y = (value) => 8 + ((HEIGHT - 16) * (top - value)) / (top + floor);
    const right = width - 2;
    const pitch = Math.min((right - LEFT) / bars.length, 26);
    const begin = right - pitch * bars.length;
    const grid = [];
    for (let value = -floor; value <= top + 1e-9; value += step) {
      const zero = Math.abs(value) < 1e-9;
      const line = { class: zero ? "zero" : "grid", x1: LEFT, x2: right, y1: y(value), y2: y(value) };
      const said = zero ? "0" : `${value < 0 ? "\u2212" : ""}${decimal(Math.abs(value), step < 0.1 ? 2 : step < 1 ? 1 : 0)}`;
      grid.push(shape("line", line), shape("text", { x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, said));
    }
    const marks = bars.map((one, index) => {
      const x = begin + index * pitch + Math.min(pitch / 8, 1.5);
      const rects = one.parts.map(([from, to, regime]) =>
        coloured("rect", from + to < 0 ? "bad" : regimeColour(regime), {
          x, width: Math.max(pitch - Math.min(pitch / 4, 3), 1), y: y(Math.max(from, to)),
          height: Math.max(Math.abs(y(from) - y(to)), 0.6),
        }),
      );
      return shape("g", {}, shape("title", {}, one.said), rects);
    });
    const lost = this.#past.filter((request) => savedOf(request) < 0).length;
    const said = `Milliseconds saved a token in each of the last ${count(bars.length)} replies; ${lost} of them lost time.`;
    const seen = REGIME_ORDER.filter((regime) => this.#past.some((one) => one.regimes.some((r) => r.regime === regime)));
    return [
      picture(width, HEIGHT, said, grid, marks),
      legend([...seen.map((regime) => [regimeColour(regime), regimeName(regime)]), ...(lost ? [["bad", "lost"]] : [])]),
    ];
  }
}

export const savedOf = (request) => request.regimes.reduce((sum, regime) => sum + regime.saved, 0);

function stack(request) {
  let above = 0;
  let below = 0;
  const parts = [];
  for (const regime of [...request.regimes].sort(byOrder)) {
    const each = (1e3 * regime.saved) / request.tokens;
    if (each >= 0) parts.push([above, (above += each), regime.regime]);
    else parts.push([-below, -(below -= each), regime.regime]);
  }
  return { parts, above, below, said: `${request.kind}: ${duration(savedOf(request))} saved in ${count(request.tokens)} tokens` };
}
