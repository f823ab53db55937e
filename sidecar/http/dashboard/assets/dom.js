// Elements, drawings that fit their place, and numbers as people read them.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

export const element = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const shape = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

/** A shape in one of the style sheet's colours. */
export function coloured(tag, colour, attributes = {}, ...children) {
  const node = shape(tag, attributes, ...children);
  node.style.fill = `var(--${colour})`;
  return node;
}

export function key(colour) {
  const node = element("span", { class: "key", "aria-hidden": true });
  node.style.color = `var(--${colour})`;
  return node;
}

export const legend = (entries) =>
  element("ul", { class: "legend" }, entries.map(([colour, name]) => element("li", {}, key(colour), name)));

export const empty = (...said) => element("p", { class: "empty" }, ...said);

/** A drawing that is drawn again when its place changes its width. */
export class Drawing {
  #place;
  #draw;
  #width = 0;

  constructor(place, draw) {
    this.#place = place;
    this.#draw = draw;
    new ResizeObserver(() => {
      if (Math.abs(place.clientWidth - this.#width) >= 1) this.update();
    }).observe(place);
  }

  update() {
    this.#width = this.#place.clientWidth;
    if (this.#width > 0) this.#place.replaceChildren(...[this.#draw(this.#width)].flat());
  }
}

export const picture = (width, height, said, ...children) =>
  shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said }, ...children);

/** A bar that fills its place, of parts that are [share, colour, name]. */
export function bar(parts, said, height = 8) {
  let at = 0;
  const rects = parts.map(([share, colour, name]) => {
    const rect = coloured("rect", colour, { x: `${100 * at}%`, width: `${100 * Math.max(share, 0)}%`, height });
    if (name) rect.append(shape("title", {}, name));
    at += share;
    return rect;
  });
  const back = coloured("rect", "grid", { width: "100%", height, rx: 2 });
  return shape("svg", { width: "100%", height, role: "img", "aria-label": said }, back, rects);
}

export function table(caption, heads, rows, attributes = {}) {
  const head = heads.map(([name, kind = "", columns = null]) =>
    element("th", { scope: columns ? "colgroup" : "col", class: kind, colspan: columns }, name),
  );
  return element(
    "table",
    attributes,
    element("caption", { class: "hidden" }, caption),
    element("thead", {}, element("tr", {}, head)),
    element("tbody", {}, rows),
  );
}

export const cell = (kind, ...children) => element("td", { class: kind }, ...children);

export function count(n) {
  return Math.round(n).toLocaleString("en");
}

export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

export function decimal(n, digits) {
  return n.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function rate(n) {
  return n >= 100 ? count(n) : decimal(n, n >= 10 ? 0 : 1);
}

export function percent(share) {
  const shown = Math.round(100 * share);
  return `${shown}\u2009%`;
}

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; n >= 1024 && at < units.length - 1; at += 1) n /= 1024;
  return `${at === 0 || n >= 100 ? count(n) : decimal(n, 1)} ${units[at]}`;
}

export function duration(seconds) {
  const size = Math.abs(seconds);
  const sign = seconds < 0 ? "\u2212" : "";
  if (size < 0.9995) return `${sign}${size < 0.01 ? decimal(1e3 * size, 1) : count(1e3 * size)} ms`;
  if (size < 90) return `${sign}${decimal(size, size < 9.95 ? 2 : 1)} s`;
  if (size < 5400) return `${sign}${Math.floor(size / 60)} min ${Math.round(size % 60)} s`;
  return `${sign}${Math.floor(size / 3600)} h ${Math.round((size % 3600) / 60)} min`;
}

/** With its sign, since less than nothing matters here. */
export function signed(n, digits) {
  const text = decimal(Math.abs(n), digits);
  if (Number(text.replaceAll(",", "")) === 0) return text;
  return `${n < 0 ? "\u2212" : "+"}${text}`;
}

export const clock = (time) => new Date(1e3 * time).toLocaleTimeString("en-GB");

/** Round numbers for an axis from 0 to at least `most`. */
export function steps(most, wanted = 3) {
  const rough = Math.max(most, 1e-9) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((nice) => nice * power >= rough) * power;
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, index) => index * step);
}

const REGIMES = { reasoning: "reasoning", prose: "prose", code: "code", tool_call: "tool calls" };
export const REGIME_ORDER = Object.keys(REGIMES);
export const regimeName = (regime) => REGIMES[regime] ?? regime;
export const regimeColour = (regime) => (regime in REGIMES ? regime : "none");

const DRAFTERS = {
  copy: "copying", prediction: "prediction", dflash: "DFlash", grammar: "grammar", mtp: "MTP",
};
export const drafterName = (drafter) => DRAFTERS[drafter] ?? (drafter || "target-only");
export const drafterColour = (drafter) => (drafter in DRAFTERS ? drafter : "none");
