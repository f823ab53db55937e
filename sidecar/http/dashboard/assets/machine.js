// The model, what it runs on, and what it takes.

import { bar, byId, bytes, count, decimal, duration, element, legend, plural } from "./dom.js";

export function showMachine(status) {
  showMemory(status);
  const { model, exactness } = status;
  const facts = [
    ["Model", model ? described(model) : status.requested_model],
    ["Context", model ? `${count(model.context)} tokens` : ""],
    ["Drafting", status.drafters.length ? `with ${status.drafters.map(String).join(" and ")}` : "off: target-only"],
    ["Exactness", exactness ? exact(exactness, status.fast) : ""],
    ["Proof", status.totals.audits ? `${plural(status.totals.audits, "reply", "replies")} decoded again in idle time, ${plural(status.totals.audit_differences, "difference")}` : ""],
    ["Kernels", status.kernels],
    ["Pace", Math.abs(status.slowdown - 1) > 0.1 ? `rounds take ${decimal(status.slowdown, 2)} times what was measured at the start` : ""],
    ["Notes", status.notes.join("; ")],
    ...status.workspace.map((folder) => ["Folder", `${folder.root}: ${folder.mode}${folder.detail ? ` (${folder.detail})` : ""}, ${plural(folder.files, "file")}`]),
  ];
  const shown = facts.filter(([, value]) => value);
  byId("machine-facts").replaceChildren(...shown.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  byId("process").textContent = `Version ${status.version}, process ${status.pid}, ${status.url}`;
}

function described(model) {
  if (model.family === "upstream") return `${model.id} at ${model.path}`;
  const size = `${decimal(model.parameters / 1e6, 1)} M parameters`;
  return [model.id, model.family, size, quantised(model)].filter(Boolean).join(", ");
}

const quantised = (model) => (model.quantization === "none" ? "" : model.quantization);

function exact(exactness, fast) {
  const widths = `up to ${plural(exactness.width, "row")} a forward`;
  if (exactness.exact) return `every width probed equal to one row at a time, ${widths}`;
  return fast ? `not exact, as asked: ${exactness.reason}` : `exact ${widths}; wider ones are not used: ${exactness.reason}`;
}

function showMemory({ model, memory_bytes: total, cache }) {
  const place = byId("memory");
  if (!model || !total) {
    place.replaceChildren();
    return;
  }
  const weights = Math.min(model.weight_bytes, total);
  const kept = Math.min(cache.memory_bytes, total - weights);
  const parts = [
    [weights, "accent", "weights"],
    [kept, "file2", "prefix cache"],
    [Math.max(total - weights - kept, 0), "none", "drafter, open requests, buffers"],
  ];
  const said = parts.map(([size, , name]) => `${name} ${bytes(size)}`).join(", ");
  place.replaceChildren(
    bar(parts.map(([size, colour, name]) => [size / total, colour, `${name}: ${bytes(size)}`]), `${bytes(total)} in arrays: ${said}`, 10),
    legend([...parts.map(([size, colour, name]) => [colour, `${name} ${bytes(size)}`])]),
  );
}
