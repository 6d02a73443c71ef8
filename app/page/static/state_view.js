import { candidateItems } from "./candidates.js";
import { Codes, css, degrees, MEAN_COLOURS, PHASE_COLOURS } from "./codes.js";
import { download, downloadPicture } from "./downloads.js";
import { Heatmaps } from "./heatmaps.js";
import { Histogram } from "./histogram.js";
import { Recording } from "./recording.js";
import { TokenText } from "./token_text.js";

const INTERVAL_MS = 85; // between requests: some 11 redraws a second
const MAX_PAUSE_MS = 4000; // the last pause without an answer, some 10 s after the first
const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
const ZOOM_STEPS = { "+": 1, "=": 1, "-": -1 };

/** The live view of a run: it asks the server for new columns and draws them. */
export class StateView {
  /**
   * @param {HTMLElement} element The section of state_view.html.
   * @param {{low: number, high: number, value: import("./recording.js").Run | null}} props
   *     The limits of the codes, and the run that is to be shown.
   * @param {Record<"columns" | "row" | "arrays", (request: unknown[]) => Promise<any>>} server
   *     Functions of state_view.py.
   */
  constructor(element, props, server) {
    Object.assign(this, { element, props, server });
    this.codes = new Codes(props.low, props.high);
    this.heatmaps = new Heatmaps(element, this.codes);
    this.histogram = new Histogram(this.find("histogram"), this.codes);
    this.text = new TokenText(this.find("text"));
    this.tip = this.find("tip");
    this.layer = 0;
    this.draws = 0;
    this.polls = 0; // the last one's number; the others have ended
    this.#drawLegends();
    this.#listen();
    this.start();
    this.measure();
  }

  find(name) {
    return this.element.querySelector(`.${name}`);
  }

  get run() {
    return this.recording.run;
  }
  get have() {
    return this.recording.columns[this.layer].length;
  }
  get done() {
    return this.recording.done;
  }
  get pieces() {
    return this.recording.pieces;
  }

  // ---- the run ----
  /** Show the run in `props.value`; an empty view keeps the layers of the run before it. */
  start() {
    const { value } = this.props;
    const run = value?.run ? value : { layers: 1, channels: 1, ...this.recording, run: null };
    if (this.recording && run.run === this.run) return;
    this.recording = new Recording(run);
    this.row = this.selected = null;
    this.text.clear();
    this.tip.textContent = this.find("count").textContent = "";
    this.find("candidates").textContent = "";
    this.find("place").textContent = this.find("memory").textContent = "click a token in the text";
    const picker = this.find("layer");
    if (picker.length !== run.layers)
      picker.replaceChildren(...Array.from({ length: run.layers }, (_, i) => new Option(i + 1, i)));
    this.#show(Math.min(this.layer, run.layers - 1));
  }

  /** Show a layer. @param {number} layer */
  change(layer) {
    this.row = null;
    this.#show(layer);
    if (this.selected !== null) this.select(this.selected);
  }

  #show(layer) {
    this.layer = layer;
    this.find("layer").value = String(layer);
    this.repaint();
    this.polls++;
    if (this.run) this.#poll(this.polls);
  }

  async #poll(number) {
    let pause = INTERVAL_MS;
    while (number === this.polls) {
      const began = performance.now();
      const request = [this.run, this.layer, this.have, this.pieces.length];
      const answer = await this.server.columns(request).catch(() => null);
      if (number !== this.polls) return;
      pause = answer ? INTERVAL_MS : 1.5 * pause; // a busy server gives none for a while
      if (answer) this.#add(answer);
      else if (pause > MAX_PAUSE_MS) {
        this.recording.done = true;
        this.tip.textContent = "The server no longer has this run.";
        return;
      }
      if (this.done && this.have >= this.pieces.length) return;
      const wait = pause - (performance.now() - began);
      await new Promise((wake) => setTimeout(wake, wait));
    }
  }

  #add(answer) {
    const wasDone = this.done;
    this.recording.add(answer);
    if (answer.resets) this.text.mark(this.recording.resets);
    if (answer.resets || (answer.done && !wasDone)) this.heatmaps.invalidate();
    this.schedule();
  }

  // ---- drawing ----
  repaint() {
    const order = this.find("order").value;
    this.heatmaps.selected = this.selected;
    this.heatmaps.reset(this.recording, this.layer, order === "sorted");
    this.schedule();
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    const { recording, layer } = this;
    const count = recording.pieces.length.toLocaleString("en");
    this.frame = undefined;
    this.heatmaps.update();
    this.text.update(recording);
    this.histogram.draw(recording, layer);
    this.find("count").textContent = recording.pieces.length
      ? `${count} tokens${recording.full ? ", no room for more" : ""}`
      : "";
    this.draws++;
  }

  /** Read sizes and colours; only when they change. */
  measure() {
    this.heatmaps.measure();
    this.histogram.measure();
    this.schedule();
  }

  #drawLegends() {
    const legends = { half: MEAN_COLOURS, turn: PHASE_COLOURS, mean: MEAN_COLOURS };
    for (const [name, colours] of Object.entries(legends)) {
      const canvas = this.find(name);
      const context = canvas.getContext("2d");
      for (let x = 0; x < canvas.width; x++) {
        context.fillStyle = css(colours[Math.round((x / (canvas.width - 1)) * 255)]);
        context.fillRect(x, 0, 1, canvas.height);
      }
    }
  }

  // ---- one token ----
  /** Show what the state held of every token when this one was read. @param {number} token */
  async select(token) {
    const { recording, layer } = this;
    if (!this.run || !(token >= 0 && token < this.pieces.length)) return;
    this.selected = this.heatmaps.selected = token;
    this.text.select(token);
    this.heatmaps.show();
    const row = await this.server.row([this.run, layer, token]).catch(() => null);
    const stale = recording !== this.recording || layer !== this.layer || token !== this.selected;
    if (!row || stale) return;
    this.row = row;
    this.text.explain(row);
    const { text } = this.pieces[token];
    this.find("memory").textContent =
      `in layer ${layer + 1} when ${JSON.stringify(text)} (token ${token}) was read`;
    this.find("place").textContent = row.candidates.length
      ? `token ${token}`
      : "a token that was given, not drawn";
    this.find("candidates").replaceChildren(...candidateItems(row.candidates, text));
  }

  #describe({ token, row, ofLayers }) {
    const { columns, averages, layers, channels, pieces } = this.recording;
    const { data, length, size } = columns[this.layer];
    const word = `token ${token} ${JSON.stringify(pieces[token]?.text ?? "")}`;
    if (token < 0 || token >= (ofLayers ? averages.length : length)) return "";
    if (ofLayers) {
      const mean = averages.data[token * layers + row] / 255;
      return `${word} · layer ${row + 1} · mean |a| ${mean.toFixed(3)}`;
    }
    const channel = this.heatmaps.order[row];
    const code = data[token * size + channel];
    const phase = degrees(data[token * size + channels + channel]).toFixed(0);
    const magnitude = Math.exp(-this.codes.decay(code)).toFixed(4);
    const life = this.codes.halfLife(code);
    const digits = life < 10 ? 2 : life < 100 ? 1 : 0;
    const lifeText = life.toLocaleString("en", {
      minimumFractionDigits: digits,
      maximumFractionDigits: digits,
    });
    return `${word} · channel ${channel} · |a| ${magnitude} · half-life ${lifeText} tokens · phase ${phase}°`;
  }

  async #downloadArrays() {
    const url = this.run && (await this.server.arrays([this.run]).catch(() => null));
    if (url) download(url, "transitions.npz");
    else this.tip.textContent = "There is nothing to download yet.";
  }

  // ---- events ----
  #listen() {
    const { heatmaps, text } = this;
    const on = (name, event, listener) => this.find(name).addEventListener(event, listener);
    on("layer", "change", (event) => this.change(Number(event.target.value)));
    on("order", "change", () => this.repaint());
    on("zoom", "input", () => heatmaps.show());
    on("scroll", "scroll", () => heatmaps.show());
    on("png", "click", () => downloadPicture(heatmaps.canvases, `layer-${this.layer + 1}.png`));
    on("npz", "click", () => this.#downloadArrays());
    for (const canvas of heatmaps.canvases) {
      canvas.addEventListener("mousemove", (event) => {
        this.tip.textContent = this.#describe(heatmaps.cell(event));
      });
      canvas.addEventListener("mouseleave", () => {
        this.tip.textContent = "";
      });
      canvas.addEventListener("click", (event) => {
        const { token, row, ofLayers } = heatmaps.cell(event);
        if (ofLayers && row !== this.layer) this.change(row);
        this.select(token);
      });
    }
    on("magnitude", "keydown", (event) => this.#key(event));
    on("text", "keydown", (event) => this.#key(event));
    text.element.addEventListener("click", (event) => {
      const span = event.target.closest("span[data-token]");
      if (span) this.select(Number(span.dataset.token));
    });
    new ResizeObserver(() => this.measure()).observe(heatmaps.scroll);
    const dark = new MutationObserver(() => this.measure());
    dark.observe(document.body, { attributeFilter: ["class"] });
  }

  #key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return; // the browser's own
    const step = STEPS[event.key];
    const zoom = ZOOM_STEPS[event.key];
    if (step === undefined && zoom === undefined) return;
    event.preventDefault();
    if (zoom) {
      this.find("zoom").valueAsNumber += zoom;
      this.heatmaps.show();
    } else {
      const last = this.pieces.length - 1;
      this.select(Math.min(last, Math.max(0, (this.selected ?? last) + step)));
    }
  }
}

/**
 * Make a gr.HTML a state view; its arguments are those of js_on_load.
 * @param {HTMLElement} element
 */
export function show(element, props, server, watch) {
  const section = element.querySelector(".gl");
  section.view = new StateView(section, props, server);
  watch("value", () => section.view.start());
}
