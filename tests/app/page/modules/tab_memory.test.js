import assert from "node:assert/strict";
import { test } from "node:test";
import * as memory from "../../../../app/page/static/tab_memory.js";

test("settings are stored, and those of another version of the page are not", () => {
  const stored = new Map();
  const storage = { getItem: (key) => stored.get(key), setItem: (key, v) => stored.set(key, v) };
  globalThis.window = { localStorage: storage, sessionStorage: storage };
  memory.keepSettings(1, "a");
  memory.keepFades(false);
  memory.keepSession("s");
  assert.deepEqual(memory.settings(2, "b"), [1, "a"]);
  assert.deepEqual(memory.settings(2, "b", 3), [2, "b", 3]);
  assert.deepEqual([memory.fades(), memory.session()], [false, "s"]);
});

test("a browser that blocks storage has the defaults", () => {
  globalThis.window = new Proxy({}, { get: () => assert.fail("denied") });
  memory.keepSettings(1, "a");
  memory.keepFades(false);
  memory.keepSession("s");
  const read = [memory.settings(2, "b"), memory.fades(), memory.session()];
  assert.deepEqual(read, [[2, "b"], true, ""]);
});
