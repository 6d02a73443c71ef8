import assert from "node:assert";
import { test } from "node:test";
import { Recording } from "../../../../app/page/static/recording.js";

const layers = (...channels) =>
  channels.map((channels, i) => ({ label: String(i + 1), channels, real: false }));
const base64 = (...values) => btoa(String.fromCharCode(...values));
const answer = (start, tokens) => ({
  layer: 1,
  start,
  columns: base64(...tokens.flatMap((n) => [n, n])),
  known: start,
  averages: base64(...tokens.flatMap((n) => [n, 0])),
  pieces: tokens.map((n) => ({ text: String(n), prompt: false, special: false })),
  words: null,
  resets: base64(tokens.reduce((bits, n) => bits | (1 << n), 0) & 255),
  tokens: start + tokens.length,
  done: false,
  last: null,
  grouped: 0,
});

test("a run takes over what it has in common with another, but for a last text that may grow", () => {
  const earlier = new Recording({ run: "a", layers: layers(1, 1) });
  earlier.add(answer(0, [0, 1, 2, 3]));
  const later = new Recording({ run: "b", layers: layers(1, 1) });
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

test("update wait for what comes before them, and older ones change nothing", () => {
  const recording = new Recording({ run: "a", layers: layers(1, 1) });
  assert.equal(recording.add(answer(2, [2, 3])), false);
  assert.equal(recording.has(1), false);
  assert.equal(recording.add(answer(0, [0, 1])), true);
  assert.equal(recording.add(answer(2, [2, 3])), true);
  assert.equal(recording.has(1), true);
  assert.equal(recording.has(0), false);
  const words = {
    start: 0,
    words: [{ message: 0, begin: 0, text: "a", first: 0, stop: 4 }],
    strengths: base64(9),
    answer: 1,
  };
  const last = { ...answer(3, [3]), words, done: true, last: "end" };
  for (const update of [last, answer(0, [0, 1]), last]) recording.add(update);
  assert.deepEqual(
    recording.pieces.map(({ text }) => text),
    ["0", "1", "2", "end"],
  );
  assert.deepEqual([recording.columns[1].length, recording.averages.length], [4, 4]);
  assert.deepEqual([recording.words[0].text, ...recording.strengths], ["a", 9]);
  assert.equal(recording.done, true);
});

test("a run of another model takes nothing", () => {
  const earlier = new Recording({ run: "a", layers: layers(5) });
  const later = new Recording({ run: "b", layers: layers(1, 1) });
  later.take(earlier, 0);
  later.add(answer(0, [4]));
  assert.deepEqual([...later.columns[1].data.slice(0, 2)], [4, 4]);
});

test("a run that a layer was left out of takes nothing", () => {
  const earlier = new Recording({ run: "a", layers: layers(1, 1) });
  earlier.add(answer(0, [0, 1, 2, 3]));
  const later = new Recording({ run: "a", layers: [{ ...layers(1, 1)[1], label: "1: b" }] });
  later.take(earlier, 4);
  assert.deepEqual([later.pieces.length, later.averages.length], [0, 0]);
  assert.equal(later.columns[0].length, 0);
});

test("layers may have different numbers of channels", () => {
  const recording = new Recording({ run: "a", layers: layers(3, 1) });
  recording.add({ ...answer(0, [7]), grouped: 5 });
  recording.add({ ...answer(0, [7]), layer: 0, columns: base64(1, 2, 3, 4, 5, 6), grouped: 5 });
  assert.deepEqual([...recording.columns[0].data.slice(0, 6)], [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(
    recording.columns.map(({ length }) => length),
    [1, 1],
  );
  assert.equal(recording.averages.size, 2);
  assert.equal(recording.grouped, 5);
});
