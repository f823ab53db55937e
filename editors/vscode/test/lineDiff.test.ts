import assert from "node:assert/strict";
import { test } from "node:test";
import { hunkAt, lineHunks, splitLines, type LineHunk } from "../src/lineDiff";

function patched(before: string, after: string, take: (index: number) => boolean): string {
  const [old, fresh] = [splitLines(before), splitLines(after)];
  let made = "";
  let at = 0;
  lineHunks(old, fresh).forEach((hunk, index) => {
    made += old.slice(at, hunk.start).join("");
    made += take(index)
      ? fresh.slice(hunk.otherStart, hunk.otherEnd).join("")
      : old.slice(hunk.start, hunk.end).join("");
    at = hunk.end;
  });
  return made + old.slice(at).join("");
}

test("lines keep their ends, of every kind", () => {
  const text = "a\r\nb\nc\rd😀\r\n";
  assert.deepEqual(splitLines(text), ["a\r\n", "b\n", "c\r", "d😀\r\n"]);
});

test("all hunks make the other text and none the same one", () => {
  const texts = ["", "a", "a\n", "a\nb\n", "b\na\n", "x\na\ny\nb\nz", "a\r\nb\r\n", "\n\n", "a\nb"];
  for (const before of texts) {
    for (const after of texts) {
      assert.equal(
        patched(before, after, () => true),
        after,
      );
      assert.equal(
        patched(before, after, () => false),
        before,
      );
    }
  }
});

test("each change is a hunk of its own and can be left", () => {
  const before = "one\ntwo\nthree\nfour\nfive\n";
  const after = "ONE\ntwo\nthree\nfour\nfive\nsix\n";
  assert.equal(lineHunks(splitLines(before), splitLines(after)).length, 2);
  assert.equal(
    patched(before, after, (index) => index === 1),
    before + "six\n",
  );
});

test("texts too different for the table are one hunk, at once", () => {
  const lines = (word: string): string[] => Array.from({ length: 9000 }, (_, i) => `${word}${i}\n`);
  const hunks = lineHunks(["same\n", ...lines("a")], ["same\n", ...lines("b")]);
  assert.deepEqual(hunks, [{ start: 1, end: 9001, otherStart: 1, otherEnd: 9001 }]);
});

test("the hunk at the cursor is the one it is in, else the next, else the last", () => {
  const removed: LineHunk = { start: 0, end: 2, otherStart: 0, otherEnd: 0 };
  const changed: LineHunk = { start: 5, end: 6, otherStart: 3, otherEnd: 5 };
  const hunks = [removed, changed];
  assert.equal(hunkAt(hunks, 0), removed);
  assert.equal(hunkAt(hunks, 1), changed);
  assert.equal(hunkAt(hunks, 4), changed);
  assert.equal(hunkAt(hunks, 99), changed);
  assert.equal(hunkAt([], 0), undefined);
});
