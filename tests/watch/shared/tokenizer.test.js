import assert from "node:assert";
import { test } from "node:test";
import { Tokenizer } from "../../../mlx_gateloop/watch/shared/tokenizer.js";

test("special tokens of any letters are read as such, the longest first", () => {
  const special = { "[a]": 3, "(x)": 4, "(x)+": 5, "\\d": 6 };
  const tokenizer = new Tokenizer({ pieces: ["a", "x", "5"], merges: [], special });
  assert.deepEqual(tokenizer.encode("a[a](x)+(x)x\\d5", true), [0, 3, 5, 4, 1, 6, 2]);
  assert.deepEqual(tokenizer.encode("ax", true), [0, 1]);
  assert.deepEqual(tokenizer.decode([0, 5, 3]), ["a", "(x)+", "[a]"]);
});
