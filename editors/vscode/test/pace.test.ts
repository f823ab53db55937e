import assert from "node:assert/strict";
import { test } from "node:test";
import { Pace } from "../src/pace";

test("a third of what slow answers take is waited", () => {
  const pace = new Pace();
  for (let i = 0; i < 16; i++) pace.measured(150);
  assert.equal(pace.delay(null), 50);
});

test("answers that need no model do not make it ask too early for those that do", () => {
  const pace = new Pace();
  for (const ms of [2, 2, 2, 2, 2, 300, 300, 300]) pace.measured(ms);
  assert.equal(pace.delay(null), 100);
});

test("a model that became quick again is asked sooner", () => {
  const pace = new Pace();
  for (let i = 0; i < 16; i++) pace.measured(900);
  assert.equal(pace.delay(null), 200);
  for (let i = 0; i < 16; i++) pace.measured(30);
  assert.equal(pace.delay(null), 10);
});

test("what the user set holds, whatever was measured", () => {
  const pace = new Pace();
  pace.measured(900);
  assert.equal(pace.delay(0), 0);
  assert.equal(pace.delay(700), 700);
  assert.equal(pace.delay(-5), 0);
});
