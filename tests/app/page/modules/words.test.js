import assert from "node:assert";
import { test } from "node:test";
import {
  percent,
  plain,
  quoted,
  remembered,
  sharedPixel,
} from "../../../../app/page/static/words.js";

test("a share is never said to be nothing while something is left", () => {
  assert.deepEqual([1, 0.914, 0.034, 0.0004, 0].map(percent), [
    "100%",
    "91%",
    "3.4%",
    "less than 0.1%",
    "0.0%",
  ]);
});

test("what is left is said as the mean and as the best channel's", () => {
  const row = { mean: [0.034, 1], best: [0.914, 1], channel: [57, 0], full: [-0.0123456, 1] };
  assert.equal(
    remembered(row, 0, " split"),
    '" split" (token 0): 3.4% is left on average over the channels, 91% in the best one, ' +
      "channel 57. Contribution to the output, Re(q Πa k): -0.0123.",
  );
  const old = remembered({ ...row, full: [null, 1] }, 0, "x");
  assert.match(old, /Re\(q Πa k\): no longer kept\.$/);
  assert.equal(remembered(row, 2, "x"), '"x" (token 2) comes later.');
});

test("a mark of direction turns nothing that follows", () => {
  assert.equal(quoted('a\u202e"b'), String.raw`"a\u202e\"b"`);
  assert.equal(plain("\u2066שלום\u2069"), String.raw`\u2066שלום\u2069`);
});

test("a pixel of several cells says so", () => {
  assert.equal(sharedPixel({ row: 1, bin: 1 }), "");
  assert.equal(sharedPixel(undefined), "");
  assert.equal(sharedPixel({ row: 2, bin: 3 }), "· means of 2 channels and 3 tokens");
});
