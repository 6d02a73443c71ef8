import { quoted } from "../../../mlx_gateloop/watch/shared/plain.js";
import { playing } from "../../../mlx_gateloop/watch/shared/play.js";
import { TokenText } from "./token_text.js";
import { named, remembered } from "./words.js";

const POINT = "Click a word to go back to it, then point at an earlier one.";

/** The words, the selected token, and the retention of every word at that token. */
export class Memory {
  constructor(view) {
    this.view = view;
    this.text = new TokenText(view.find("text"));
    this.moment = view.find("moment");
    this.moment.addEventListener("input", () => view.select(this.moment.valueAsNumber));
    playing(view.find("play"), this.moment, (token) => view.select(token));
  }

  start() {
    const { view } = this;
    this.row = this.selected = this.pointed = null;
    this.text.clear();
    for (const name of ["memory", "candidates", "place"]) view.find(name).textContent = "";
    view.find("share").textContent = POINT;
    this.update();
  }

  update() {
    const { moment, view } = this;
    const { pieces } = view.recording;
    this.text.update(view.recording);
    const last = Math.max(0, pieces.length - 1);
    moment.disabled = view.find("play").disabled = !pieces.length;
    moment.max = last;
    moment.value = this.selected ?? last;
    const now = moment.valueAsNumber;
    view.find("now").textContent = pieces.length ? named(pieces[now], now) : "";
  }

  select(token) {
    this.selected = token;
    this.row = null;
    this.update(); // a key may arrive before the frame that draws the token
    this.text.select(token);
    this.wanted = token;
    if (!this.asking) this.#ask();
  }

  /** Point at a token, or at none. */
  point(token) {
    this.pointed = token;
    this.text.point(token);
    this.view.find("share").textContent = this.describe(token).join(" · ") || POINT;
  }

  /** Lines about how much of a token remains. */
  describe(token) {
    const piece = this.view.recording.pieces[token];
    if (!piece) return [];
    return this.row ? remembered(this.row, token, piece) : [named(piece, token)];
  }

  /** Request the latest selected token, one request at a time. */
  async #ask() {
    const { view } = this;
    this.asking = true;
    while (this.wanted !== null) {
      const { layer, recording, run } = view;
      const token = this.wanted;
      this.wanted = null;
      const row = await view.server.row([run, layer, token]).catch(() => null);
      if (row && recording === view.recording && layer === view.layer) this.#show(row, token);
    }
    this.asking = false;
  }

  #show(row, token) {
    const { layers, pieces } = this.view.recording;
    const find = (name) => this.view.find(name);
    this.text.explain(row); // also while the next one is requested, for playback
    if (token !== this.selected) return;
    this.row = row;
    const { text } = pieces[token];
    const layer = layers.length > 1 ? `, layer ${layers[this.view.layer].label}` : "";
    find("memory").textContent = `at ${quoted(text)}, token ${token}${layer}`;
    const none = "a word of the prompt, not sampled";
    find("place").textContent = row.candidates.length ? `at token ${token}` : none;
    find("candidates").replaceChildren(...candidateItems(row.candidates, text));
    this.point(this.pointed);
    this.view.element.dispatchEvent(new CustomEvent("row", { bubbles: true, detail: row }));
  }
}

export function candidateItems(candidates, taken) {
  return candidates.map(([text, probability]) => {
    const [item, bar, name, number] = ["li", "i", "span", "span"].map((tag) =>
      document.createElement(tag),
    );
    bar.style.width = `${100 * probability}%`;
    name.textContent = quoted(text);
    number.textContent = `${(100 * probability).toFixed(1)}%`;
    item.classList.toggle("taken", text === taken);
    item.append(bar, name, number);
    return item;
  });
}
