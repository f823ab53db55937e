// What runs now, the last requests with the reasons of their fallbacks, and their replay.

import {
  bar, byId, cell, clock, coloured, count, decimal, drafterColour, drafterName, duration, element, empty, legend, percent,
  plural, rate, regimeName, shape, signed, table,
} from "./dom.js";
import { savedOf } from "./surplus.js";

const TRY = `curl ${location.origin}/v1/chat/completions -H 'Content-Type: application/json' -d '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}'`;
const MOST_ROWS = 50;
const FIRST_ROWS = 10;

export function showRunning(open, status) {
  const waiting = status?.queued ?? 0;
  byId("queue").textContent = open.length
    ? `${plural(open.length, "request")} open${waiting ? `, ${count(waiting)} of them waiting` : ""}.`
    : "Nothing is running.";
  const rows = open.map((request) => {
    const share = request.prompt_tokens ? request.done / request.prompt_tokens : 0;
    const said = {
      queued: "waiting",
      prompt: `prompt, ${percent(share)}`,
      reply: plural(request.tokens, "token"),
    }[request.phase];
    const meter = request.phase === "prompt" ? bar([[share, "accent"]], said, 6) : request.phase;
    return element(
      "div",
      { class: "running" },
      element("span", {}, request.kind),
      element("span", { class: "meter" }, meter),
      element("span", {}, said),
    );
  });
  byId("running").replaceChildren(...rows);
}

export class Past {
  #body = null;
  #ids = new Set();
  #all = false;
  #more = element("button", { class: "act", type: "button" });

  constructor() {
    this.#more.addEventListener("click", () => {
      this.#all = !this.#all;
      this.#fold();
    });
  }

  clear() {
    this.#body = null;
    this.#ids.clear();
    byId("past").replaceChildren(
      empty("No request yet. Point an editor or an agent at the daemon, or try ", element("code", {}, TRY)),
    );
  }

  #fold() {
    const mains = this.#body === null ? [] : [...this.#body.querySelectorAll("tr.main")];
    for (const [index, main] of mains.entries()) {
      // What somebody is looking at stays.
      const kept = this.#all || index < FIRST_ROWS || !main.nextElementSibling.hidden || main.contains(document.activeElement);
      main.hidden = !kept;
    }
    this.#more.hidden = mains.length <= FIRST_ROWS;
    this.#more.textContent = this.#all ? `Show the last ${FIRST_ROWS} alone` : `Show all ${mains.length}`;
  }

  /** ended: the newest last. */
  add(ended) {
    for (const request of ended) {
      if (this.#ids.has(request.id)) continue;
      if (this.#body === null) this.#begin();
      this.#ids.add(request.id);
      this.#body.prepend(...row(request));
    }
    while (this.#body !== null && this.#ids.size > MOST_ROWS) {
      const [oldest] = this.#ids;
      this.#ids.delete(oldest);
      this.#body.lastElementChild.remove();
      this.#body.lastElementChild.remove();
    }
    this.#fold();
  }

  #begin() {
    const heads = [
      ["When"], ["What"], ["Prompt", "n wide"], ["Reply", "n"], ["Speed", "n wide"], ["Saved", "n"], ["Without drafts because"],
    ];
    const whole = table("The last requests, the newest first", heads, []);
    this.#body = whole.querySelector("tbody");
    byId("past").replaceChildren(element("div", { class: "scroll" }, whole), this.#more);
  }
}

function row(request) {
  const more = element("tr", { class: "more", hidden: true }, element("td", { colspan: 7 }));
  more.id = `more-${request.id}`;
  const fold = element(
    "button",
    { class: "fold", type: "button", "aria-expanded": "false", "aria-controls": more.id },
    clock(request.started),
    element("span", { class: "hidden" }, `, ${request.kind}: details`),
  );
  fold.addEventListener("click", () => {
    more.hidden = !more.hidden;
    fold.setAttribute("aria-expanded", String(!more.hidden));
    if (!more.hidden && more.firstElementChild.childElementCount === 0) more.firstElementChild.append(details(request));
  });
  const saved = savedOf(request);
  const speed = request.decode_ms > 0 && request.tokens > 1 ? `${rate((1e3 * (request.tokens - 1)) / request.decode_ms)} tok/s` : "\u2013";
  const decoded = request.tokens > 1;
  const main = element(
    "tr",
    { class: "main" },
    cell("", fold),
    cell("", request.kind, request.ending === "failed" ? element("span", { class: "loss" }, " failed") : null),
    cell("n wide", count(request.prompt_tokens), request.cached_tokens ? element("span", { class: "sub" }, ` (${percent(request.cached_tokens / request.prompt_tokens)} cached)`) : null),
    cell("n", count(request.tokens)),
    cell("n wide", speed),
    cell("n", decoded ? element("span", { class: saved < 0 ? "loss" : saved > 0 ? "gain" : "" }, savedText(saved)) : "\u2013"),
    cell("why", why(request)),
  );
  return [main, more];
}

function savedText(seconds) {
  return Math.abs(seconds) < 5e-5 ? "0 ms" : `${seconds > 0 ? "+" : ""}${duration(seconds)}`;
}

const decodingOf = (request) => request.regimes.reduce((sum, regime) => sum + regime.seconds, 0);

function why(request) {
  const [first, ...rest] = request.fallbacks;
  if (first === undefined) return request.tokens > 1 ? "every round had drafts" : "\u2013";
  const share = first.seconds === null ? "" : ` (${percent(first.seconds / (decodingOf(request) || 1))} of the time)`;
  return `${first.reason}${share}${rest.length ? `, and ${plural(rest.length, "other reason")}` : ""}`;
}

function details(request) {
  const total = decodingOf(request) || 1;
  const reasons = request.fallbacks.map((fallback) =>
    element("li", {}, fallback.reason, fallback.seconds === null ? "" : `: ${duration(fallback.seconds)}, ${percent(fallback.seconds / total)}`),
  );
  const drafted = request.accepted + request.rejected;
  const facts = [
    `ended: ${request.ending}; ${request.sampled ? "sampled" : "greedy"}${request.asked_to_draft ? "" : "; asked not to draft"}`,
    `waited ${duration(request.queue_ms / 1e3)}, prompt ${duration(request.prefill_ms / 1e3)}, reply ${duration(request.decode_ms / 1e3)}`,
    drafted ? `${count(request.accepted)} of ${count(drafted)} drafts accepted in ${plural(request.rounds, "round")}, up to ${count(request.width)} rows` : plural(request.rounds, "round"),
    request.cached_tokens ? `${count(request.cache.memory)} prompt tokens from memory, ${count(request.cache.disk)} from disk (${request.cache.kind}), ${duration(request.cache.saved_ms / 1e3)} saved` : "nothing of the prompt was cached",
    request.exact ? "exact: the same tokens as without drafts" : "not proven exact",
    ...request.regimes.map((regime) => `${regimeName(regime.regime)}: ${plural(regime.tokens, "token")}, ${rate(regime.tok_s)} tok/s, ${signed(regime.surplus_ms, 2)} ms a token saved`),
  ];
  return element(
    "div",
    {},
    element(
      "div",
      { class: "more-grid" },
      element("div", {}, element("h3", {}, "Rounds without drafts"), element("ul", {}, reasons.length ? reasons : element("li", {}, "none"))),
      element("div", {}, element("h3", {}, "Account"), element("ul", {}, facts.map((fact) => element("li", {}, fact)))),
    ),
    replayOf(request),
  );
}

function replayOf(request) {
  const place = element("div", { class: "replay" });
  if (!request.replay) {
    place.append(element("p", { class: "note" }, "There is no reply to replay."));
    return place;
  }
  const button = element("button", { class: "act", type: "button" }, "Replay without drafts");
  const result = element("div", { "aria-live": "polite" });
  button.addEventListener("click", async () => {
    if (button.getAttribute("aria-disabled")) return;
    button.setAttribute("aria-disabled", "true");
    result.replaceChildren(element("p", { class: "verdict" }, "Decoding it again, without drafts and then with them, when nobody else waits."));
    try {
      result.replaceChildren(...verdict(await replay(request.id)));
    } catch (error) {
      result.replaceChildren(element("p", { class: "verdict loss" }, error.message));
    }
    button.removeAttribute("aria-disabled");
  });
  place.append(button, result);
  return place;
}

async function replay(id) {
  let response;
  try {
    response = await fetch("/dashboard/replay", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ id }),
    });
  } catch {
    throw new Error("The daemon does not answer.");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error.message);
  return answer;
}

function verdict({ target_only: plain, drafted, slower }) {
  const both = plain.same && drafted.same;
  const tokens = plain.tokens === 1 ? "the one token" : `all ${count(plain.tokens)} tokens`;
  const said = both
    ? `The same: ${tokens} without drafts, with drafts, and in the reply that was sent.`
    : `Not the same: ${[["without drafts", plain], ["with drafts", drafted]]
        .filter(([, one]) => !one.same)
        .map(([name, one]) => `${name} it parts from the reply at token ${count(one.parts_at)}`)
        .join("; ")}.`;
  const compared = slower === null ? "" : ` ${comparison(drafted, slower)}`;
  const longest = Math.max(plain.seconds, drafted.seconds, 1e-9);
  const strips = [["without drafts", plain], ["with drafts", drafted]].map(([name, one]) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, name),
      cell("bar", strip(one, longest)),
      cell("n", duration(one.seconds)),
      cell("n wide", plural(one.rounds, "round")),
    ),
  );
  const used = [...new Set([...plain.timeline, ...drafted.timeline].map((span) => span.drafter))];
  return [
    element("p", { class: both ? "verdict" : "verdict loss" }, said, compared),
    table("Both decodings, round by round", [["Decoding"], ["Rounds", "bar"], ["Time", "n"], ["Count", "n wide"]], strips),
    legend(used.map((drafter) => [drafterColour(drafter), drafterName(drafter)])),
  ];
}

function comparison(drafted, slower) {
  if (drafted.timeline.every((span) => span.drafter === "")) return "Nothing was drafted this time, so both did the same.";
  const times = slower >= 1 ? "times as long" : "of the time: here drafting lost";
  return `Without drafts decoding took ${decimal(slower, 2)} ${times}.`;
}

/** Across: time. Up: rows of a round's forward. */
function strip(decoded, longest) {
  const most = Math.max(...decoded.timeline.map((span) => span.width), 8);
  let at = 0;
  const parts = decoded.timeline.map((span) => {
    const tall = 3 + (25 * span.width) / most;
    const rect = coloured("rect", drafterColour(span.drafter), {
      x: `${(100 * at) / longest}%`, width: `${(100 * span.seconds) / longest}%`, y: 28 - tall, height: tall,
    }, shape("title", {}, `${drafterName(span.drafter)}, ${regimeName(span.regime)}: ${plural(span.rounds, "round")} of ${plural(span.width, "row")}, ${plural(span.tokens, "token")}`));
    at += span.seconds;
    return rect;
  });
  return shape("svg", { width: "100%", height: 28, role: "img", "aria-label": `${plural(decoded.rounds, "round")} in ${duration(decoded.seconds)}` }, parts);
}
