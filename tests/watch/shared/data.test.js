import assert from "node:assert";
import { test } from "node:test";
import { recording } from "../../../mlx_gateloop/watch/shared/data.js";

const base64 = (...codes) => Buffer.from(codes).toString("base64");
const data = {
  texts: ["a", "b"],
  kinds: ["prompt", "answer"],
  left: base64(255, 0, 128),
  rates: [1e-6, 16],
  layers: [{ kind: "gate loop", rows: 1, codes: base64(0, 255) }],
  forgotten: [],
};

test("a strength is of an earlier token at a later one", () => {
  const { strength } = recording(data);
  assert.equal(strength(0, 0), 1);
  assert.equal(strength(0, 1), undefined); // not recorded
  assert.equal(strength(1, 1), 0.5);
  assert.equal(strength(1, 0), 0);
});

test("codes are half-lives, on a scale of logarithms", () => {
  const { halfLife, layers } = recording(data);
  assert.deepEqual([...layers[0].codes], [0, 255]);
  assert.ok(Math.abs(halfLife(0) / (Math.LN2 / 1e-6) - 1) < 1e-9);
  assert.ok(Math.abs(halfLife(255) / (Math.LN2 / 16) - 1) < 1e-9);
});
