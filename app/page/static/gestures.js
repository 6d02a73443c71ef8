const DRAG = 4; // CSS pixels, from which on a press is no click
const NOTCH = 200; // of a wheel, that doubles a size

/**
 * Let elements be zoomed by two fingers, a pinch on a trackpad or the wheel with Ctrl, and be
 * panned by dragging. The wheel alone scrolls the page.
 */
export function gestures(elements, { pan, magnify, reset }) {
  const fingers = new Map();
  let moved = 0;
  const spread = () => {
    const [a, b] = [...fingers.values()];
    return { size: Math.hypot(a.x - b.x, a.y - b.y), middle: (a.x + b.x) / 2 };
  };
  const move = (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const now = { x: event.clientX, y: event.clientY };
    if (fingers.size === 2) {
      const { size, middle } = spread();
      fingers.set(event.pointerId, now);
      const after = spread();
      if (size) magnify(after.size / size, middle);
      pan(middle - after.middle);
      moved = Infinity;
      return;
    }
    moved += Math.abs(now.x - before.x);
    fingers.set(event.pointerId, now);
    if (moved > DRAG) pan(before.x - now.x);
  };
  const listeners = {
    pointerdown(event) {
      if (event.button) return;
      if (!fingers.size) moved = 0;
      fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    },
    click(event) {
      if (moved > DRAG) event.stopImmediatePropagation(); // it ends a drag
    },
    dblclick: reset,
    wheel(event) {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault(); // it would zoom the page
      magnify(2 ** (-event.deltaY / NOTCH), event.clientX);
    },
    touchmove(event) {
      if (event.touches.length > 1) event.preventDefault(); // nor may the page scroll
    },
  };
  for (const element of elements)
    for (const [name, listener] of Object.entries(listeners))
      element.addEventListener(name, listener, { passive: false });
  window.addEventListener("pointermove", move);
  for (const end of ["pointerup", "pointercancel"])
    window.addEventListener(end, (event) => fingers.delete(event.pointerId));
}
