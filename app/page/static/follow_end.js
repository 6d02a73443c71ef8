/** @type {WeakMap<HTMLElement, { text: string, top: number, away: boolean }>} */
const followed = new WeakMap();

/** Keep the end of a growing text in sight, unless its reader has scrolled away from it. */
export function followEnd(element, text) {
  if (!followed.has(element)) {
    followed.set(element, { text: "", top: 0, away: false });
    element.addEventListener("scroll", () => {
      const { scrollTop, clientHeight, scrollHeight } = element;
      const state = followed.get(element);
      if (scrollTop < state.top) state.away = true; // only a reader scrolls up
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
