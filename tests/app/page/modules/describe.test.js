import assert from "node:assert";
import { test } from "node:test";
import { Codes } from "../../../../app/page/static/codes.js";
import { describe } from "../../../../app/page/static/describe.js";

const codes = new Codes(Math.log(1e-6), Math.log(16));
const records = (size, ...data) => ({ data, size, length: data.length / size });
const recording = {
  layers: [
    { label: "1", channels: 2, real: false },
    { label: "2: layers.0.mamba · state space", channels: 1, real: true },
  ],
  columns: [records(4, 100, 200, 0, 255), records(2, 100, 128)],
  averages: records(2, 255, 51),
  pieces: [{ text: "a" }],
};
const cell = { of: "magnitude", token: 0, from: 0, bin: 1, indices: [1] };

test("a channel is described with its turn, if it has one", () => {
  const [word, kept, life, turn] = describe(recording, 0, codes, cell);
  assert.equal(word, "“a”, token 0");
  assert.match(kept, /^channel 1: keeps \d+\.\d\d%$/);
  assert.match(life, /^half remains after \S+ such tokens$/);
  assert.equal(turn, "turned by 180°");
  const real = describe(recording, 1, codes, { ...cell, indices: [0] });
  assert.equal(real.length, 3);
  assert.match(real[1], /^channel 0: /);
});

test("a layer is described by its label", () => {
  const shown = describe(recording, 0, codes, { ...cell, of: "layers" });
  assert.deepEqual(shown, ["“a”, token 0", "layer 2: layers.0.mamba · state space keeps 20%"]);
});

test("where there is no token there is nothing to say", () => {
  assert.deepEqual(describe(recording, 0, codes, { ...cell, token: 1 }), []);
});
