import assert from "node:assert";
import { test } from "node:test";
import { named, remembered, sharedPixel, strengths } from "../../../../app/page/static/words.js";

test("what is left is said beside the strongest token's, with the best channel", () => {
  const row = { retention: [0.3, 0.6], best: [0.914, 1], channel: [57, 0], full: [-0.0123456, 1] };
  assert.deepEqual(remembered(row, 0, { text: " split" }), [
    "“ split”, token 0",
    "50% as strong as the strongest token",
    "channel 57 of this layer keeps 91%",
    "adds -0.0123 to the output",
  ]);
  const old = { ...row, retention: [null, 1], full: [null, 1] };
  assert.deepEqual(remembered(old, 0, { text: "x" }).slice(1), [
    "too long ago to be known",
    "channel 57 of this layer keeps 91%",
  ]);
  assert.deepEqual(remembered(row, 2, { text: "x" }), ["“x”, token 2", "comes later"]);
});

test("a special token is no word, and a text turns nothing that follows", () => {
  assert.equal(named({ text: "<|im_end|>", special: true }, 3), "a special token, token 3");
  assert.equal(named({ text: "a\u202eb" }, 4), "“a\\u202eb”, token 4");
});

test("a token is as strong as it is beside the strongest", () => {
  assert.deepEqual(strengths({ retention: [null, 0.2, 0, 0.4] }), [null, 0.5, 0, 1]);
  assert.deepEqual(strengths({ retention: [null, null] }), [null, null]);
});

test("a pixel of several cells says so", () => {
  assert.equal(sharedPixel({ row: 1, bin: 1 }), "");
  assert.equal(sharedPixel(undefined), "");
  assert.equal(sharedPixel({ row: 2, bin: 3 }), "· means of 2 channels and 3 tokens");
});
