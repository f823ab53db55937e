import assert from "node:assert/strict";
import { test } from "node:test";
import type { Summary } from "../src/protocol";
import { viewOf, type State } from "../src/statusView";

const READY: Summary = {
  state: "ready",
  message: "ready",
  action: "",
  percent: null,
  model: "qwen",
  target_only: "",
  tok_s: 431.4,
  surplus_ms: 1.24,
  cache_hit_share: 0.613,
};

function connected(change: Partial<Summary>): State {
  return { kind: "connected", summary: { ...READY, ...change } };
}

test("every state has words of its own", () => {
  const texts = [
    viewOf({ kind: "starting" }).text,
    viewOf({ kind: "stopped" }).text,
    viewOf({ kind: "error", message: "no", action: "" }).text,
    viewOf(connected({ state: "loading", percent: 42, tok_s: null })).text,
    viewOf(connected({})).text,
    viewOf(connected({ state: "busy" })).text,
    viewOf(connected({ state: "target-only", target_only: "no drafter" })).text,
  ];
  assert.deepEqual(texts, [
    "$(sync~spin) Pillion: starting",
    "$(debug-disconnect) Pillion: stopped",
    "$(error) Pillion",
    "$(sync~spin) Pillion: loading 42 %",
    "$(zap) qwen 431 tok/s",
    "$(loading~spin) qwen 431 tok/s",
    "$(zap) qwen 431 tok/s (target-only)",
  ]);
});

test("an error says what to do, whoever found it", () => {
  const facts = ["The model is gone", "Start the daemon again"];
  const said = { message: "the model is gone", action: "start the daemon again" };
  for (const state of [
    { kind: "error", ...said } as const,
    connected({ state: "error", ...said }),
  ]) {
    assert.deepEqual(viewOf(state).facts, facts);
    assert.equal(viewOf(state).severity, "error");
  }
});

test("a daemon that somebody stops is no error", () => {
  const stopping = {
    state: "stopped",
    message: "qwen: the engine was stopped",
    action: "start it again",
  } as const;
  assert.deepEqual(viewOf(connected(stopping)), viewOf({ kind: "stopped" }));
});

test("target-only says why, also while the model works", () => {
  const why = "no drafter fits this model";
  const view = viewOf(connected({ state: "busy", target_only: why }));
  assert.match(view.text, /target-only/);
  assert.ok(view.facts.includes(`Target-only: ${why}`));
});

test("numbers are told as they are, and not before there are any", () => {
  assert.deepEqual(viewOf(connected({ surplus_ms: -2.5 })).facts, [
    "qwen is ready",
    "431 tokens a second",
    "Drafting costs 2.5 ms a token",
    "61 % of prompts cached",
  ]);
  const none = { tok_s: null, surplus_ms: null, cache_hit_share: null };
  assert.deepEqual(viewOf(connected(none)).facts, ["qwen is ready"]);
});

test("where suggestions are off the entry shows it, with the reason", () => {
  const view = viewOf(connected({}), "suggestions are off for markdown");
  assert.match(view.text, /^\$\(circle-slash\)/);
  assert.ok(view.facts.includes("Suggestions are off for markdown"));
});
