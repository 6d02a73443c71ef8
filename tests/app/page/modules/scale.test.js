import assert from "node:assert";
import { test } from "node:test";
import { MAX_ZOOM, perToken, sharing, zoomOf } from "../../../../app/page/static/scale.js";

const zooms = Array.from({ length: MAX_ZOOM + 1 }, (_, zoom) => zoom);

test("every step of the zoom makes tokens wider, however long the answer is", () => {
  for (const count of [1, 47, 300, 1000, 8000])
    for (const done of [false, true]) {
      const widths = zooms.map((zoom) => perToken({ zoom, width: 695, count, done }));
      for (const zoom of zooms.slice(1)) assert.ok(widths[zoom] > 1.1 * widths[zoom - 1]);
    }
});

test("without zoom all tokens fit", () => {
  for (const count of [1, 47, 300, 8000]) {
    const width = perToken({ zoom: 0, width: 695, count, done: true });
    assert.ok(width * count <= 695.001);
    assert.ok(width <= 16);
  }
});

test("a width has its zoom, within the limits", () => {
  const shown = { width: 695, count: 300, done: true };
  for (const zoom of zooms) {
    const each = perToken({ ...shown, zoom });
    assert.ok(Math.abs(zoomOf({ ...shown, each }) - zoom) < 1e-9);
  }
  assert.deepEqual(
    [0.1, 500].map((each) => zoomOf({ ...shown, each })),
    [0, MAX_ZOOM],
  );
});

test("a growing run is scaled in steps", () => {
  const width = (count) => perToken({ zoom: 0, width: 695, count, done: false });
  const widths = new Set(Array.from({ length: 1000 }, (_, count) => width(count)));
  assert.ok(widths.size < 15);
  for (let count = 1; count < 1000; count++) assert.ok(width(count) * count <= 695.001);
});

test("a pixel is shared by as few neighbours as it takes", () => {
  assert.deepEqual([2, 1, 0.99, 0.5, 0.4, 1 / 3].map(sharing), [1, 1, 2, 2, 3, 3]);
});
