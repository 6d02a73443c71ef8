/** @type {WeakMap<HTMLElement, { text: string, top: number, away: boolean }>} */
const followed = new WeakMap();

/** Scroll to the end of a growing text, unless the user has scrolled away. */
export function followEnd(element, text) {
  if (!element) return; // its tab was not opened yet
  if (!followed.has(element)) {
    followed.set(element, { text: "", top: 0, away: false });
    element.addEventListener("scroll", () => {
      const { scrollTop, clientHeight, scrollHeight } = element;
      const state = followed.get(element);
      if (scrollTop < state.top) state.away = true; // only a user scrolls up
      if (scrollTop + clientHeight > scrollHeight - 8) state.away = false;
      state.top = scrollTop;
    });
  }
  const state = followed.get(element);
  if (!text.startsWith(state.text)) state.away = false;
  state.text = text;
  requestAnimationFrame(() => {
    if (!state.away) element.scrollTop = element.scrollHeight;
  });
}
