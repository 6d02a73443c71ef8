import assert from "node:assert";
import { test } from "node:test";
import {
  inTokens,
  percent,
  plain,
  quoted,
  strong,
} from "../../../mlx_gateloop/watch/shared/plain.js";

test("what turns the direction of a text, and control characters, are shown as codes", () => {
  assert.equal(plain("a\u202eb\u0000\u001b[1m\u2066"), "a\\u202eb\\u0000\\u001b[1m\\u2066");
  assert.equal(plain("one\r\ntwo\n\tthree 日本"), "one\ntwo\n\tthree 日本");
});

test("long texts are cut in quotation marks", () => {
  assert.equal(quoted("a\r\nb\n"), "“a↵b↵”");
  assert.equal(quoted("x".repeat(60)), `“${"x".repeat(39)}…”`);
});

test("what no file can hold is shown as codes too", () => {
  assert.equal(plain("\ud800a\uffff"), "\\ud800a\\uffff");
  assert.equal(plain("\u{1f642}"), "\u{1f642}");
});

test("a share is never summary to be nothing while something is left", () => {
  assert.deepEqual([1, 0.914, 0.034, 0.0004, 0].map(percent), [
    "100%",
    "91%",
    "3.4%",
    "less than 0.1%",
    "0.0%",
  ]);
  assert.equal(strong(0.5), "50% as strong as the strongest token");
  assert.equal(strong(null), "too long ago to be known");
});

test("half-lives have the digits that mean something", () => {
  assert.deepEqual([0.2, 1.234, 56.7, 1234.5, 2e6].map(inTokens), [
    "less than a token",
    "1.2 tokens",
    "57 tokens",
    "1,235 tokens",
    "more than 10,000 tokens",
  ]);
});
