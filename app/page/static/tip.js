const AWAY = 14; // CSS pixels from the pointer
const MARGIN = 4; // to the window's edges

/** A tooltip at the pointer, inside the window. */
export class Tip {
  constructor(element) {
    this.element = element;
  }

  /** Show lines of text below a title, or hide the tip if there are none. */
  show([name, ...lines], x, y) {
    const { element } = this;
    if (name === undefined) return this.hide();
    const parts = [name, ...lines].map((line, i) => {
      const part = document.createElement(i ? "div" : "b");
      part.textContent = line;
      return part;
    });
    element.replaceChildren(...parts);
    if (!element.matches(":popover-open")) element.showPopover();
    const { offsetWidth: width, offsetHeight: height } = element;
    const right = x + AWAY + width + MARGIN <= window.innerWidth;
    const below = y + AWAY + height + MARGIN <= window.innerHeight;
    const left = right ? x + AWAY : x - AWAY - width;
    const top = below ? y + AWAY : y - AWAY - height;
    element.style.left = `${Math.max(MARGIN, Math.min(left, window.innerWidth - width - MARGIN))}px`;
    element.style.top = `${Math.max(MARGIN, top)}px`;
  }

  hide() {
    if (this.element.matches(":popover-open")) this.element.hidePopover();
  }
}
