import assert from "node:assert/strict";
import { test } from "node:test";

import { likelihood, strongest } from "../../../../app/page/static/dependence.js";

test("losses in words", () => {
  assert.equal(likelihood(10.4), "33,000 times less likely");
  assert.equal(likelihood(0.2), "1.2 times less likely");
  assert.equal(likelihood(-1), "2.7 times more likely");
  assert.equal(likelihood(0.01), "as likely as with it");
  assert.equal(likelihood(40), "more than a million times less likely");
});

test("the strongest part is the one with the greatest loss, if there is one", () => {
  const units = [
    [0, 1],
    [1, 3],
  ];
  assert.deepEqual(strongest({ units, losses: [-3, 2] }), { first: 1, stop: 3, loss: 2 });
  assert.equal(strongest({ units, losses: [-3, 0] }), null);
});
