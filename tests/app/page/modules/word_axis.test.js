import assert from "node:assert";
import { test } from "node:test";
import { written } from "../../../../app/page/static/word_axis.js";

const words = ["", "What", "does", "`", "str", ".", "split", "`", "do", "?"];
const sorted = (tokens) => tokens.sort((a, b) => a - b);

test("where columns are wide every token with a word has it", () => {
  assert.deepEqual(written(words, 12), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
});

test("names come before signs, and signs are between them where they fit", () => {
  assert.deepEqual(written(words, 6), [1, 4, 6, 8]);
  assert.deepEqual(written(["(", "(", "a", "(", "(", "b"], 6), [0, 2, 5]);
});

test("no two words overlap, and none more fits", () => {
  const many = Array.from({ length: 900 }, (_, i) => (i % 7 ? "ab.c(d"[i % 6] : ""));
  for (const width of [0.1, 1, 2.3, 5, 11.9, 12, 40]) {
    const tokens = written(many, width);
    const gaps = tokens.slice(1).map((token, i) => token - tokens[i]);
    assert.ok(gaps.every((gap) => gap * width >= 12));
    const alone = (token) => tokens.every((other) => Math.abs(other - token) * width >= 12);
    assert.ok(!many.some((word, token) => word && alone(token)));
  }
});

test("what is chosen is written instead of its neighbours", () => {
  assert.deepEqual(sorted(written(words, 6, [5, null])), [1, 5, 8]);
  assert.deepEqual(written(words, 6, [0, null]), written(words, 6)); // it has no word
});
