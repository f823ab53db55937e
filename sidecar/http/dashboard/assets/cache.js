// The prefix cache: how full its tiers are, and a picture of what is in memory.

import {
  bar, byId, bytes, cell, coloured, count, decimal, Drawing, element, empty, key, legend, picture, plural, shape, steps, table,
} from "./dom.js";

const HEIGHT = 210;
const LOWEST_ROW = 2;
const COLOURS = ["file0", "file1", "file2", "file3", "file4", "file5"];
const MOST_FILES = 8;

export function showTiers(cache) {
  const memory = tier(
    "Memory",
    cache.memory_budget
      ? `${bytes(cache.memory_bytes)} of ${bytes(cache.memory_budget)}; ${plural(cache.nodes, "stretch", "stretches")}, ${plural(cache.snapshots, "snapshot")}`
      : "off",
    cache.memory_bytes / (cache.memory_budget || 1),
  );
  const on = !["off", "opening"].includes(cache.disk_state);
  const said = on ? `${bytes(cache.disk_bytes)} of ${bytes(cache.disk_budget)} in ${plural(cache.disk_files, "file")}` : "";
  const detail = [said, cache.disk_state === "writing" ? "" : cache.disk_state, cache.disk_detail].filter(Boolean).join("; ");
  byId("cache-tiers").replaceChildren(memory, tier("Disk", detail, cache.disk_bytes / (cache.disk_budget || 1)));
}

function tier(name, said, share) {
  const filled = bar([[Math.min(share, 1), "accent"]], `${name}: ${said}`, 6);
  return element("div", { class: "tier" }, element("p", {}, element("span", {}, name), element("span", {}, said)), filled);
}

export class CacheMap {
  #nodes = [];
  #leftOut = 0;
  #files = [];
  #drawing = new Drawing(byId("cache-map"), (width) => this.#draw(width));

  show(cache) {
    this.#nodes = lanes(cache.nodes);
    this.#leftOut = cache.left_out;
    this.#files = byFile(cache.nodes);
    this.#drawing.update();
    byId("cache-files").replaceChildren(...this.#table());
  }

  #colour(path) {
    if (!path) return "nofile";
    const at = this.#files.findIndex((file) => file.path === path);
    return COLOURS[at] ?? "files";
  }

  #draw(width) {
    if (this.#nodes.length === 0) return empty("Nothing is kept yet: the first prompt of some length will be.");
    const rows = Math.max(...this.#nodes.map((node) => node.row + node.rows));
    const most = Math.max(...this.#nodes.map((node) => node.end));
    const pitch = Math.min((HEIGHT - 24) / rows, 22);
    const height = rows * pitch + 24;
    const axis = steps(most, 4);
    const x = (tokens) => ((width - 2) * tokens) / most;
    const gap = pitch > 5 ? 1 : 0;
    const marks = this.#nodes.map((node) => {
      const [left, right] = [x(node.start), x(node.end)];
      const [y, tall] = [node.row * pitch, Math.max(node.rows * pitch - gap, Math.min(LOWEST_ROW, pitch))];
      const rect = coloured("rect", this.#colour(node.path), {
        x: left, y, width: Math.max(right - left - 1, 0.8), height: tall, opacity: node.demoted ? 0.35 : 1,
      });
      const parts = [shape("title", {}, describe(node)), rect];
      if (!node.on_disk) parts.push(coloured("rect", "paper", inside(left, y, right - left - 1, tall)));
      if (node.snapshot && tall >= 5) parts.push(coloured("rect", "ink", { x: right - 2.2, y, width: 1.2, height: tall, opacity: 0.7 }));
      return shape("g", {}, parts);
    });
    const labels = axis
      .filter((tokens) => tokens <= most)
      .map((tokens, index) =>
        shape("text", { x: x(tokens), y: height - 4, "text-anchor": index ? "middle" : "start" }, index ? count(tokens) : "0 tokens"),
      );
    const said = `${plural(this.#nodes.length, "stretch", "stretches")} of prompts in memory, the longest prompt ${count(most)} tokens. The table below has them by file.`;
    return picture(width, height, said, marks, labels);
  }

  #table() {
    if (this.#nodes.length === 0) return [];
    const shown = this.#files.slice(0, MOST_FILES);
    const rows = [...shown, others(this.#files.slice(MOST_FILES))].filter(Boolean).map((file) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, key(file.colour ?? this.#colour(file.path)), file.name || "no file: instructions, messages, what was typed"),
        cell("n", count(file.tokens)),
        cell("n", bytes(file.bytes)),
        cell("n wide", count(file.saved)),
        cell("n", count(file.hits)),
      ),
    );
    const heads = [["File"], ["Tokens", "n"], ["Memory", "n"], ["On disk too", "n wide"], ["Uses", "n"]];
    const notes = [
      "Filled: in memory and on disk; hollow: in memory alone.",
      this.#nodes.some((node) => node.snapshot) ? "A line at the right end: the whole state is known there." : "",
      this.#nodes.some((node) => node.demoted) ? "Pale: the file says something else now." : "",
      this.#leftOut ? `${count(this.#leftOut)} more stretches are not drawn.` : "",
    ];
    return [
      element("p", { class: "note" }, notes.filter(Boolean).join(" ")),
      element("div", { class: "scroll" }, table("The prefix cache by file", heads, rows)),
    ];
  }
}

function describe(node) {
  const facts = [
    node.path || "no file",
    `tokens ${count(node.start)} to ${count(node.end)}`,
    bytes(node.bytes),
    plural(node.hits, "use"),
    node.snapshot && "snapshot",
    node.on_disk && "on disk",
    node.demoted && "the file changed",
  ];
  return facts.filter(Boolean).join(", ");
}

/** What makes a stretch hollow. */
function inside(x, y, width, tall) {
  const rim = Math.min(1.5, width / 4, tall / 4);
  return { x: x + rim, y: y + rim, width: Math.max(width - 2 * rim, 0), height: Math.max(tall - 2 * rim, 0), opacity: 0.75 };
}

/** A row for every leaf; a parent is as high as its children together. Parents come first. */
function lanes(nodes) {
  const tree = nodes.map((node) => ({ ...node, children: [] }));
  const roots = [];
  const path = [];
  for (const node of tree) {
    path.length = node.depth;
    (path.at(-1)?.children ?? roots).push(node);
    path.push(node);
  }
  let row = 0;
  const lay = (node) => {
    node.row = row;
    for (const child of node.children.sort((one, other) => other.end - one.end)) lay(child);
    if (node.children.length === 0) row += 1;
    node.rows = row - node.row;
  };
  for (const root of roots.sort((one, other) => reach(other) - reach(one))) lay(root);
  return tree;
}

const reach = (node) => Math.max(node.end, ...node.children.map(reach));

function byFile(nodes) {
  const files = new Map();
  for (const node of nodes) {
    const file = files.get(node.path) ?? { path: node.path, tokens: 0, bytes: 0, saved: 0, hits: 0 };
    file.tokens += node.end - node.start;
    file.bytes += node.bytes;
    file.saved += node.on_disk ? node.end - node.start : 0;
    file.hits += node.hits;
    files.set(node.path, file);
  }
  const named = [...files.values()].filter((file) => file.path).sort((one, other) => other.tokens - one.tokens);
  const shared = sharedFolder(named.map((file) => file.path));
  for (const file of named) file.name = file.path.slice(shared.length);
  return files.has("") ? [...named, files.get("")] : named;
}

/** What the names of all files begin with, as far as it is a folder. */
function sharedFolder(paths) {
  if (paths.length === 0) return "";
  let [shared] = paths;
  for (const path of paths) while (!path.startsWith(shared)) shared = shared.slice(0, -1);
  return shared.slice(0, shared.lastIndexOf("/") + 1);
}

function others(files) {
  if (files.length === 0) return null;
  const sum = (name) => files.reduce((total, file) => total + file[name], 0);
  return {
    name: plural(files.length, "more file"), colour: "files",
    tokens: sum("tokens"), bytes: sum("bytes"), saved: sum("saved"), hits: sum("hits"),
  };
}
