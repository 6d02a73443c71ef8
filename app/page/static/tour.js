import { STEPS } from "./tour_steps.js";

const SEEN = "gateloop.tour"; // in localStorage
const KEYS = { ArrowLeft: -1, ArrowRight: 1 };

/** The dialog of the tour, with the numbers of tour.json. */
class Tour {
  constructor(dialog) {
    this.dialog = dialog;
    this.find = (name) => dialog.querySelector(name);
    this.dots = STEPS.map(({ title }, number) => {
      const dot = document.createElement("button");
      Object.assign(dot, { type: "button", title, onclick: () => this.show(number) });
      dot.setAttribute("aria-label", `Step ${number + 1}: ${title}`);
      const item = document.createElement("li");
      item.append(dot);
      this.find(".dots").append(item);
      return dot;
    });
    this.find(".skip").onclick = () => dialog.close();
    this.find(".back").onclick = () => this.show(this.step - 1);
    this.find(".next").onclick = () => this.show(this.step + 1);
    dialog.addEventListener("keydown", (event) => {
      const change = KEYS[event.key];
      if (change) this.show(Math.min(STEPS.length - 1, Math.max(0, this.step + change)));
    });
    new ResizeObserver(() => this.#draw()).observe(this.find(".shows"));
  }

  async open() {
    if (this.dialog.open) return;
    const answer = this.recorded ?? (await fetch(new URL("tour.json", import.meta.url)));
    this.recorded ??= await answer.json();
    this.dialog.showModal();
    this.show(0);
  }

  /** Show a step, or close after the last one. */
  show(step) {
    this.step = step;
    if (step === STEPS.length) return this.dialog.close();
    const last = step === STEPS.length - 1;
    this.find("#tour-title").textContent = STEPS[step].title;
    this.find("#tour-text").textContent = STEPS[step].text(this.recorded);
    this.find(".number").textContent = `${step + 1} of ${STEPS.length}`;
    this.find(".next").textContent = last ? "Start" : "Next";
    if (step === 0 && document.activeElement === this.find(".back")) this.find(".next").focus();
    this.find(".back").disabled = step === 0;
    this.dots.forEach((dot, number) => {
      dot.setAttribute("aria-current", number === step ? "step" : "false");
    });
    this.dialog.scrollTop = 0;
    this.width = 0;
    this.#draw();
  }

  /** Draw the picture in the available width. */
  #draw() {
    const shows = this.find(".shows");
    if (!shows.clientWidth || shows.clientWidth === this.width) return;
    this.width = shows.clientWidth;
    shows.replaceChildren(...STEPS[this.step].draw(this.recorded, this.width));
  }
}

let attached;
const tour = new Promise((resolve) => {
  attached = resolve;
});

/** Attach the dialog. */
export const attach = (element) => attached(new Tour(element.querySelector("dialog")));

export const open = async () => (await tour).open();

/** Open the tour on the first visit, unless the browser stores nothing: that would repeat it. */
export function startOnce() {
  try {
    if (localStorage.getItem(SEEN)) return;
    localStorage.setItem(SEEN, "seen");
  } catch {
    return;
  }
  open();
}
