import assert from "node:assert";
import { test } from "node:test";
import { Recording } from "../../../../app/page/static/recording.js";

const base64 = (...values) => btoa(String.fromCharCode(...values));
const answer = (start, tokens) => ({
  layer: 1,
  start,
  columns: base64(...tokens.flatMap((n) => [n, n])),
  known: start,
  averages: base64(...tokens.flatMap((n) => [n, 0])),
  pieces: tokens.map((n) => ({ text: String(n), prompt: false })),
  resets: tokens,
  done: false,
  last: null,
  full: false,
});

test("a run takes over what it has in common with another, but for a last text that may grow", () => {
  const earlier = new Recording({ run: "a", layers: 2, channels: 1 });
  earlier.add(answer(0, [0, 1, 2, 3]));
  const later = new Recording({ run: "b", layers: 2, channels: 1 });
  later.take(earlier, 4);
  assert.deepEqual(
    later.pieces.map(({ text }) => text),
    ["0", "1", "2"],
  );
  assert.equal(later.columns[1].length, 3);
  assert.equal(later.columns[0].length, 0); // this layer was never asked for
  assert.equal(later.averages.length, 3);
  assert.deepEqual([...later.resets], [0, 1, 2]);
  later.add(answer(3, [7, 8]));
  assert.deepEqual([...later.columns[1].data.slice(0, 10)], [0, 0, 1, 1, 2, 2, 7, 7, 8, 8]);
});

test("a run of another model takes nothing", () => {
  const earlier = new Recording({ run: "a", layers: 1, channels: 5 });
  const later = new Recording({ run: "b", layers: 2, channels: 1 });
  later.take(earlier, 0);
  later.add(answer(0, [4]));
  assert.deepEqual([...later.columns[1].data.slice(0, 2)], [4, 4]);
});
