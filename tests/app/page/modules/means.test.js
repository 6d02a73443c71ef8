import assert from "node:assert";
import { test } from "node:test";
import {
  following,
  grouped,
  meanCode,
  meanLine,
  meanPhase,
} from "../../../../app/page/static/means.js";

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

test("a point of the line has the range of its tokens", () => {
  const averages = records(2, 100, 200, 50, 50, 255, 255, 0, 0, 10, 30);
  assert.deepEqual(meanLine(averages, 0, 5, 2), [
    { at: 1, mean: 100, low: 50, high: 150 },
    { at: 3, mean: 127.5, low: 0, high: 255 },
    { at: 4.5, mean: 20, low: 20, high: 20 },
  ]);
});

test("bins stay where they are while the picture scrolls and grows", () => {
  const averages = records(1, ...Array.from({ length: 40 }, (_, i) => i));
  const all = meanLine(averages, 0, 40, 4);
  assert.deepEqual(meanLine(averages, 13, 40, 4), all.slice(3));
  assert.deepEqual(meanLine(averages, 0, 38, 4).slice(0, 9), all.slice(0, 9));
});

test("a channel that keeps longer at marked tokens follows the mark", () => {
  // two channels and their phases: the first loses less at the marked tokens
  const records4 = records(4, 200, 7, 0, 0, 100, 7, 0, 0, 200, 7, 0, 0, 100, 7, 0, 0);
  assert.deepEqual(following(records4, [0, 1, 0, 1]), [1, 0]);
  assert.deepEqual(following(records4, [1, 0, 1, 0]), [-1, 0]);
  assert.deepEqual(following(records4, [1, 1, 1, 1]), [0, 0]);
});
