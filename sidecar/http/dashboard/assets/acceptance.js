// Acceptance by position, a small chart a drafter.

import {
  byId, Drawing, drafterColour, drafterName, element, empty, percent, picture, plural, shape,
} from "./dom.js";

const HEIGHT = 132;
const LEFT = 38;
const MOST_POSITIONS = 16;
const FEW = 10;

export class Acceptance {
  #drawings = new Map();
  #drafters = new Map();

  show(regimes) {
    this.#drafters = byDrafter(regimes);
    const place = byId("acceptance-chart");
    const names = [...this.#drafters.keys()];
    if (names.join() !== [...this.#drawings.keys()].join() || names.length === 0) {
      this.#drawings.clear();
      if (names.length === 0) {
        place.replaceChildren(empty("No drafts yet. Drafting begins when it pays."));
        return;
      }
      const figures = names.map((name) => {
        const chart = element("div", { class: "chart" });
        this.#drawings.set(name, new Drawing(chart, (width) => this.#draw(name, width)));
        return element("figure", {}, element("figcaption", {}), chart);
      });
      place.replaceChildren(element("div", { class: "small-charts" }, figures));
    }
    for (const [index, name] of names.entries()) {
      const { rounds } = this.#drafters.get(name);
      const caption = place.querySelectorAll("figcaption")[index];
      caption.textContent = `${drafterName(name)}, ${plural(rounds, "round")}`;
      this.#drawings.get(name).update();
    }
  }

  #draw(name, width) {
    const { tried, accepted } = this.#drafters.get(name);
    const shares = tried.map((n, index) => accepted[index] / n);
    const bottom = HEIGHT - 20;
    const right = width - 8;
    const pitch = (right - LEFT) / Math.max(shares.length, 4);
    const x = (index) => LEFT + pitch * (index + 0.5);
    const y = (share) => bottom - (bottom - 8) * share;
    const grid = [0, 0.5, 1].map((share) => [
      shape("line", { class: share ? "grid" : "axis", x1: LEFT, x2: right, y1: y(share), y2: y(share) }),
      shape("text", { x: LEFT - 7, y: y(share) + 4, "text-anchor": "end" }, percent(share)),
    ]);
    const marks = shares.map((share, index) => {
      const dot = shape("circle", { cx: x(index), cy: y(share), r: 3.6 }, shape("title", {}, `${accepted[index]} of ${tried[index]}`));
      dot.style.fill = tried[index] < FEW ? "var(--paper)" : `var(--${drafterColour(name)})`;
      dot.style.stroke = `var(--${drafterColour(name)})`;
      dot.style.strokeWidth = "1.5";
      return [dot, shape("text", { x: x(index), y: HEIGHT - 4, "text-anchor": "middle" }, String(index + 1))];
    });
    const line = shape("path", { d: `M${shares.map((share, index) => `${x(index)} ${y(share)}`).join("L")}` });
    line.style.cssText = "fill: none; stroke-width: 1.75";
    line.style.stroke = `var(--${drafterColour(name)})`;
    const said = shares.map((share, index) => `position ${index + 1}: ${percent(share)}`).join(", ");
    return picture(width, HEIGHT, `${drafterName(name)}, accepted by position. ${said}.`, grid, line, marks);
  }
}

function byDrafter(regimes) {
  const found = new Map();
  for (const regime of regimes) {
    for (const { drafter, rounds, tried, accepted } of regime.drafters) {
      const sum = found.get(drafter) ?? { rounds: 0, tried: [], accepted: [] };
      sum.rounds += rounds;
      for (const [index, n] of tried.entries()) {
        if (n === 0 || index >= MOST_POSITIONS) continue;
        sum.tried[index] = (sum.tried[index] ?? 0) + n;
        sum.accepted[index] = (sum.accepted[index] ?? 0) + accepted[index];
      }
      found.set(drafter, sum);
    }
  }
  for (const [name, { tried }] of found) if (tried.length === 0) found.delete(name);
  return new Map([...found].sort(([, one], [, other]) => other.rounds - one.rounds));
}
