import assert from "node:assert";
import { test } from "node:test";
import { following, grouped, meanCode, meanPhase } from "../../../../app/page/static/means.js";

const records = (size, ...values) => ({
  size,
  data: Uint8Array.from(values),
  length: values.length / size,
});

test("groups have all items once", () => {
  assert.deepEqual(grouped([5, 6, 7, 8, 9], 2), [[5, 6], [7, 8], [9]]);
});

test("a code is the mean of its cell and of nothing beside it", () => {
  const held = records(3, 10, 20, 200, 30, 40, 200, 250, 250, 250);
  assert.equal(meanCode(held, 0, 2, [0, 1]), 25);
  assert.equal(meanCode(held, 1, 2, [2]), 200);
});

test("the mean of phases goes around the circle", () => {
  assert.ok([0, 255].includes(meanPhase(records(1, 250, 5), 0, 2, [0]))); // not 0 degrees
  assert.equal(meanPhase(records(2, 100, 140), 0, 1, [0, 1]), 120);
  assert.equal(meanPhase(records(1, 77), 0, 1, [0]), 77);
});

test("a channel that keeps longer at marked tokens follows the mark", () => {
  // two channels and their phases: the first loses less at the marked tokens
  const records4 = records(4, 200, 7, 0, 0, 100, 7, 0, 0, 200, 7, 0, 0, 100, 7, 0, 0);
  assert.deepEqual(following(records4, [0, 1, 0, 1]), [1, 0]);
  assert.deepEqual(following(records4, [1, 0, 1, 0]), [-1, 0]);
  assert.deepEqual(following(records4, [1, 1, 1, 1]), [0, 0]);
});
