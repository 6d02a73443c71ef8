import { plain } from "../../../mlx_gateloop/watch/shared/plain.js";
import { strengths } from "./words.js";

/** The text of a run, one span per token; model output is only ever set as textContent. */
export class TokenText {
  constructor(element) {
    this.element = element;
    this.clear();
    element.addEventListener("scroll", () => {
      this.atEnd = element.scrollTop + element.clientHeight >= element.scrollHeight - 8;
    });
  }

  clear() {
    this.element.textContent = "";
    this.spans = [];
    this.selected = this.pointed = undefined;
    this.atEnd = true; // scroll to new text
  }

  update({ pieces, done, resets }) {
    const added = pieces.slice(this.spans.length).map(({ text, prompt, special }, i) => {
      const span = document.createElement("span");
      span.textContent = text;
      span.dataset.token = this.spans.length + i;
      span.classList.toggle("prompt", prompt);
      span.classList.toggle("special", special);
      span.classList.toggle("isolated", plain(text) !== text);
      span.classList.toggle("reset", resets.has(this.spans.length + i));
      return span;
    });
    this.spans.push(...added);
    this.element.append(...added);
    if (done && pieces.length) this.spans.at(-1).textContent = pieces.at(-1).text;
    if (added.length && this.atEnd) this.element.scrollTop = 1e9;
  }

  mark(resets) {
    this.spans.forEach((span, token) => {
      span.classList.toggle("reset", resets.has(token));
    });
  }

  /** Highlight a token, or none. */
  point(token) {
    this.pointed?.classList.remove("pointed");
    this.pointed = this.spans[token];
    this.pointed?.classList.add("pointed");
  }

  select(token) {
    this.selected?.classList.remove("selected");
    this.selected = this.spans[token];
    this.selected?.classList.add("selected");
    if (!this.selected) return;
    const { element } = this; // scroll this alone, not the page
    const top = this.selected.offsetTop;
    const bottom = top + this.selected.offsetHeight - element.clientHeight;
    element.scrollTop = Math.max(bottom, Math.min(top, element.scrollTop));
  }

  /** Show the retention of every token. */
  explain(row) {
    const { best, full } = row;
    const left = strengths(row);
    const most = full.reduce((most, added) => Math.max(most, Math.abs(added)), 1e-9);
    this.spans.forEach((span, token) => {
      const share = (full[token] ?? 0) / most;
      const line = `rgba(${share > 0 ? "18,165,148" : "142,78,198"},${Math.abs(share).toFixed(3)})`;
      span.classList.toggle("later", token >= left.length);
      span.style.setProperty("--left", Math.sqrt(left[token] ?? 0).toFixed(3));
      span.style.setProperty("--best", `rgba(232,89,12,${(best[token] ?? 0).toFixed(3)})`);
      span.style.setProperty("--full", share ? line : "transparent");
    });
  }
}
