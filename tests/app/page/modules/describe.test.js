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
const cell = { of: "magnitude", token: 0, from: 0, bin: 1, places: [1] };

test("a channel is described with its phase, if it has one", () => {
  const complex = describe(recording, 0, codes, cell);
  assert.match(
    complex,
    /^token 0 “a” · channel 1 · \|a\| \S+ · half-life \S+ tokens · phase 180°$/,
  );
  const real = describe(recording, 1, codes, { ...cell, places: [0] });
  assert.match(real, /channel 0 .* tokens$/);
});

test("a layer is described by its label", () => {
  const shown = describe(recording, 0, codes, { ...cell, of: "layers" });
  assert.equal(shown, "token 0 “a” · layer 2: layers.0.mamba · state space · mean |a| 0.200");
});

test("where there is no token there is nothing to say", () => {
  assert.equal(describe(recording, 0, codes, { ...cell, token: 1 }), "");
});
