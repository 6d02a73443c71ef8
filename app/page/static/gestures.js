const DRAG = 4; // CSS pixels; a longer movement is a drag, not a click
const NOTCH = 200; // wheel movement that doubles the zoom

/**
 * Zoom elements with two fingers, a pinch on a trackpad or Ctrl and the wheel, and pan them by
 * dragging. The wheel alone scrolls the page.
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
      if (event.button || event.shiftKey) return; // Shift draws a box
      if (!fingers.size) moved = 0;
      fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    },
    click(event) {
      if (moved > DRAG) event.stopImmediatePropagation(); // the end of a drag
    },
    dblclick: reset,
    wheel(event) {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault(); // prevents a zoom of the page
      magnify(2 ** (-event.deltaY / NOTCH), event.clientX);
    },
    touchmove(event) {
      if (event.touches.length > 1) event.preventDefault(); // prevents scrolling
    },
  };
  for (const element of elements)
    for (const [name, listener] of Object.entries(listeners))
      element.addEventListener(name, listener, { passive: false });
  window.addEventListener("pointermove", move);
  for (const end of ["pointerup", "pointercancel"])
    window.addEventListener(end, (event) => fingers.delete(event.pointerId));
}
