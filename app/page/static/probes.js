import { following } from "./means.js";
import { candidateItems } from "./memory.js";

const [LENS, CHANNELS] = [0, 1]; // kinds of questions, as in state_view.py
const FEATURES = { brackets: /[()[\]{}]/, quotes: /["'`]/, digits: /\d/ };
const LOST = "The server is busy, or no longer has this answer.";

/** What each layer expects instead of the chosen token, and bars at the channels. */
export class Probes {
  constructor(view) {
    this.view = view;
    this.asked = [null, null];
    this.answers = [null, null];
    [this.lens, this.bars] = ["lens", "bars"].map((name) => view.find(name));
    this.hint = this.lens.querySelector(".appears").textContent;
    this.lens.addEventListener("toggle", () => this.#look());
    this.bars.addEventListener("change", () => this.#draw());
    view.element.addEventListener("row", () => {
      this.#look();
      this.#draw();
    });
  }

  /** Ask about the selected token, one question at a time; null for all but the last one. */
  async #ask(kind) {
    const { layer, memory, run, server } = this.view;
    const asked = [run, layer, memory.selected, kind];
    this.asked[kind] = asked;
    await this.answers[kind];
    if (asked !== this.asked[kind]) return null;
    this.answers[kind] = server.probe(asked).catch(() => null);
    const answer = (await this.answers[kind]) ?? { error: LOST };
    return asked === this.asked[kind] ? answer : null;
  }

  async #look() {
    const { lens, view } = this;
    lens.querySelector("ol").replaceChildren();
    lens.querySelector(".appears").textContent = this.hint;
    if (!lens.open || !(view.memory.selected > 0)) return;
    const { text } = view.pieces[view.memory.selected];
    const answer = await this.#ask(LENS);
    if (!answer) return;
    const [guesses, appears] = answer.result ?? [[], null];
    lens.querySelector("ol").replaceChildren(...candidateItems(guesses, text));
    const found = appears === null ? "not expected" : `expected from layer ${appears} on`;
    lens.querySelector(".appears").textContent =
      answer.error ?? `${found}; 0 is the embedding; took ${answer.seconds.toFixed(2)} s`;
  }

  async #draw() {
    const { bars, view } = this;
    const { heatmaps, layer, memory, pieces, recording } = view;
    const show = (values, line) => {
      heatmaps.bars = values && { layer, values };
      view.find("most").textContent = line;
      heatmaps.show();
    };
    if (!bars.value || memory.selected === null) return show(null, "");
    if (bars.value === "part") {
      show(null, memory.selected ? "Leaving out each channel in turn …" : "");
      const answer = memory.selected && (await this.#ask(CHANNELS));
      if (!answer) return;
      if (answer.error) return show(null, answer.error);
      const largest = Math.max(...answer.result.map(Math.abs)) || 1;
      const share = answer.result.map((loss) => loss / largest);
      const at = share.findIndex((value) => Math.abs(value) === 1);
      const nats = `${largest.toFixed(2)} nats without channel ${at}`;
      return show(share, `at most ${nats}; took ${answer.seconds.toFixed(1)} s`);
    }
    const { text: same } = pieces[memory.selected];
    const pattern = FEATURES[bars.value];
    const marked = pieces.map(({ text }) => +(pattern ? pattern.test(text) : text === same));
    const found = following(recording.columns[layer], marked);
    const most = found.reduce((best, r, i) => (Math.abs(r) > Math.abs(found[best]) ? i : best), 0);
    const line = `channel ${most} follows most: correlation ${found[most].toFixed(2)}`;
    show(found, marked.includes(1) ? line : "This text has none.");
  }
}
