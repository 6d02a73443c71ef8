import assert from "node:assert/strict";
import test from "node:test";
import { tempered } from "../../../../app/page/static/next_words.js";

const CHANCES = [
  ["a", 0.6],
  ["b", 0.2],
  ["c", 0.2],
];

test("a temperature of 1 changes no share, and 0 takes the likeliest", () => {
  for (const [temperature, shares] of [
    [1, [0.6, 0.2, 0.2]],
    [0, [1, 0, 0]],
    [0.5, [9 / 11, 1 / 11, 1 / 11]],
  ])
    tempered(CHANCES, temperature).forEach(([, share], i) => {
      assert.ok(Math.abs(share - shares[i]) < 1e-9);
    });
  assert.deepEqual(tempered([], 1), []);
});
