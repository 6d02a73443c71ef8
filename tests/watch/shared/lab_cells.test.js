import assert from "node:assert";
import { test } from "node:test";
import {
  deleted,
  example,
  inserted,
  left,
  START,
  summary,
  toggled,
} from "../../../mlx_gateloop/watch/shared/lab_cells.js";

const PROPS = { modulus: 5, reset: 5, max: 64 };
const MODELS = ["Data-controlled", "Fixed"];

test("examples have digits, resets where they should be, and no more than may be", () => {
  for (const chance of [0, 0.3, 0.999999])
    for (const name of ["long", "resets", "none", "random"]) {
      const cells = example(name, PROPS, () => chance);
      assert.ok(cells.length >= 8 && cells.length <= 64);
      assert.ok(cells.every((cell) => Number.isInteger(cell) && cell >= 0 && cell <= 5));
      const resets = cells.filter((cell) => cell === 5).length;
      const expected = { long: 1, resets: 5, none: 0 }[name];
      assert.ok(expected === undefined || resets === expected, name);
    }
  assert.deepEqual([START.length, START.indexOf(5), START.lastIndexOf(5)], [48, 5, 5]);
});

test("a digit becomes a reset and comes back", () => {
  const [cells, before] = [[3, 1, 5], []];
  const reset = toggled(cells, before, 0, 5);
  assert.deepEqual(reset, [5, 1, 5]);
  assert.deepEqual(toggled(reset, before, 0, 5), cells);
  assert.deepEqual(toggled(cells, before, 2, 5), [3, 1, 0]); // it was never a digit
  assert.deepEqual(cells, [3, 1, 5]);
});

test("cells are inserted and deleted within the limits", () => {
  assert.deepEqual(inserted([1, 2], 0, 3), [1, 0, 2]);
  assert.deepEqual(inserted([1, 2], 1, 2), [1, 2]);
  assert.deepEqual(deleted([1, 2], 0), [2]);
  assert.deepEqual(deleted([1], 0), [1]);
});

test("strengths are relative to the strongest", () => {
  const rows = [[1], [0.04, 1], [0, 0.08, 0.5]];
  assert.deepEqual(
    [left(rows, 0, 0), left(rows, 1, 0), left(rows, 2, 1), left(rows, 1, 2)],
    [1, 0.2, 0.4, 0],
  );
});

test("a summary has the sum, the answers and what is held from before the reset", () => {
  const rows = Array.from({ length: 20 }, (_, n) => Array(n + 1).fill(1));
  const faded = rows.map((row) => [...row]);
  [rows[5][0], faded[5][0]] = [0.04, 0.01];
  const solved = {
    right: [3, 0, 4, 3, 3, 0],
    answers: [
      [3, 0, 4, 3, 3, 0],
      [3, 0, 4, 3, 1, 0],
    ],
    left: [rows, faded],
  };
  const cells = [3, 5, 4, 4, 0, 2];
  const tell = (cell) => summary(solved, cells, cell, PROPS, MODELS);
  assert.equal(
    tell(0),
    "Position 1, 1 since the start: 3, modulo 5 that is 3. Data-controlled: 3, right; Fixed: 3, right.",
  );
  assert.match(tell(1), /^Position 2, a reset; its answer is 0\. /);
  assert.match(
    tell(4),
    /3 since the reset: 4 \+ 4 \+ 0 = 8, modulo 5 that is 3\..*Fixed: 1, wrong/,
  );
  assert.match(tell(5), /all: 4% in data-controlled, 1% in fixed\.$/);
  const long = Array(20).fill(1);
  const all = { right: long, answers: [long, long], left: [rows, rows] };
  assert.match(summary(all, long, 19, PROPS, MODELS), /: 1 \+ 1 \+ 1 \+ … \+ 1 \+ 1 \+ 1 = 20,/);
});
