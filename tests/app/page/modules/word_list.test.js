import assert from "node:assert/strict";
import { test } from "node:test";

import { chosen, textOf, whole } from "../../../../app/page/static/word_list.js";

// "One two. Three" and "four"
const words = [
  [0, 0, "One", 0],
  [0, 4, "two", 0],
  [0, 7, ".", 0],
  [0, 9, "Three", 1],
  [1, 0, "four", 2],
].map(([message, begin, text, sentence]) => ({ message, begin, text, sentence }));

test("a position chooses the word around it, and a part all that it touches", () => {
  assert.deepEqual(chosen(words, 0, 5, 5), { first: 1, stop: 2 });
  assert.deepEqual(chosen(words, 0, 6, 10), { first: 1, stop: 4 });
  assert.deepEqual(chosen(words, 1, 0, 99), { first: 4, stop: 5 });
  assert.equal(chosen(words, 0, 3, 4), null); // a blank
  assert.equal(chosen(words, 2, 0, 1), null);
});

test("a choice grows to its sentences or messages", () => {
  assert.deepEqual(whole(words, { first: 1, stop: 2 }, "sentence"), { first: 0, stop: 3 });
  assert.deepEqual(whole(words, { first: 1, stop: 2 }, "message"), { first: 0, stop: 4 });
  assert.deepEqual(whole(words, { first: 2, stop: 5 }, "sentence"), { first: 0, stop: 5 });
});

test("a choice reads as the messages do", () => {
  assert.equal(textOf(words, { first: 0, stop: 5 }), "One two. Three four");
});
