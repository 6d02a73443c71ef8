import assert from "node:assert/strict";
import { test } from "node:test";

import { saveView } from "../../../../app/page/static/share.js";

test("a page that cannot be made is no file, and the server's line says why", async () => {
  const status = {};
  const server = { share: async () => ({ error: "too long" }) };
  await saveView({ find: () => status, run: "a", server });
  assert.equal(status.textContent, "too long");
});
