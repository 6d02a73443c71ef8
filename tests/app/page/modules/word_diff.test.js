import assert from "node:assert/strict";
import { test } from "node:test";

import { compare } from "../../../../app/page/static/word_diff.js";

const join = (parts) => parts.map(({ text, changed }) => (changed ? `[${text}]` : text)).join("");
const shown = (...texts) => Object.values(compare(...texts)).map(join);

test("words that differ are marked, with the blanks before them", () => {
  assert.deepEqual(shown("a list of it.", "a set of this."), [
    "a[ list] of[ it].",
    "a[ set] of[ this].",
  ]);
  assert.deepEqual(shown("same\n<b>", "same\n<b>"), ["same\n<b>", "same\n<b>"]);
  assert.deepEqual(shown("", "new 🙂"), ["", "[new 🙂]"]);
  assert.deepEqual(shown("old", ""), ["[old]", ""]);
});

test("while an answer grows its rest is not gone", () => {
  assert.deepEqual(shown("one two three", "one", false), ["one two three", "one"]);
  assert.deepEqual(shown("one two three", "one 2", false), ["one[ two] three", "one[ 2]"]);
});

test("the parts are the texts", () => {
  const texts = ["\u202ea b\n c,d", " a\u0301  b c\n"];
  for (const before of texts)
    for (const after of texts) {
      const parts = compare(before, after);
      assert.equal(parts.before.map(({ text }) => text).join(""), before);
      assert.equal(parts.after.map(({ text }) => text).join(""), after);
    }
});

test("texts of very many words are marked from where they differ", () => {
  const before = `same ${"-".repeat(16_000)}`;
  const after = `same ${"+".repeat(16_000)}`;
  assert.deepEqual(shown(before, after), [
    `same[ ${"-".repeat(16_000)}]`,
    `same[ ${"+".repeat(16_000)}]`,
  ]);
});
