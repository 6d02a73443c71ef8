/** @type {WeakMap<HTMLElement, { length: number, top: number, away: boolean }>} */
const followed = new WeakMap();

/**
 * Keep the end of a growing text in sight, unless its reader has scrolled away from it.
 * @param {HTMLElement} element which scrolls
 * @param {string} text which it shows; a shorter one than before is a new text
 */
export function followEnd(element, text) {
  if (!followed.has(element)) {
    followed.set(element, { length: 0, top: 0, away: false });
    element.addEventListener("scroll", () => {
      const { scrollTop, clientHeight, scrollHeight } = element;
      const state = followed.get(element);
      if (scrollTop < state.top) state.away = true; // only a reader scrolls up
      if (scrollTop + clientHeight > scrollHeight - 8) state.away = false;
      state.top = scrollTop;
    });
  }
  const state = followed.get(element);
  if (text.length < state.length) state.away = false;
  state.length = text.length;
  requestAnimationFrame(() => {
    if (!state.away) element.scrollTop = element.scrollHeight;
  });
}
