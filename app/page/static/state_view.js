import { quoted } from "../../../mlx_gateloop/watch/shared/plain.js";
import { candidateItems } from "./candidates.js";
import { Codes, css, MEAN_COLOURS, PHASE_COLOURS } from "./codes.js";
import { describe } from "./describe.js";
import { download } from "./downloads.js";
import { Heatmaps } from "./heatmaps.js";
import { Histogram } from "./histogram.js";
import { Recording } from "./recording.js";
import { saveView } from "./share.js";
import { downloadSheet } from "./sheet.js";
import { TokenText } from "./token_text.js";
import { remembered, sharedPixel } from "./words.js";

const INTERVAL_MS = 85; // between requests: some 11 redraws a second
const MAX_PAUSE_MS = 4000; // the last pause without an answer, some 10 s after the first
const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
const HINT = "every token will add a column";
const POINT = "Click a token, then point at an earlier one: how much of it was left?";
const ZOOM_STEPS = { "+": 1, "=": 1, "-": -1 };

/** The live view of a run: it asks the server for new columns and draws them. */
export class StateView {
  /**
   * @param {HTMLElement} element The section of state_view.html.
   * @param {{low: number, high: number, value: import("./recording.js").Run | {hint: string} | null}} props
   *     The limits of the codes, and the run that is to be shown, or why there is none.
   * @param {Record<"columns" | "row" | "arrays" | "shared" | "share", (request: unknown[]) => Promise<any>>} server
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
    return this.recording?.run;
  }
  get layers() {
    return this.recording.layers;
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
  /** Show the run in `props.value`; before the next run the layers of the last one stay. */
  start() {
    const { value } = this.props;
    const none = { layers: [{ label: "1", channels: 1, real: false }], picker: [[0, "1"]] };
    const before = value?.hint ? null : this.recording; // a model with nothing to see has others
    const run = value?.run ? value : { ...none, ...before, run: null };
    this.heatmaps.hint = value?.hint ?? HINT;
    this.tip.textContent = value?.hint ?? "";
    this.find("with-system").hidden = !run.system;
    // a layer may turn out not to be watched
    const same = run.run && run.run === this.run && run.layers.length === this.layers.length;
    if (same) return;
    this.find("saved").textContent = "";
    if (this.recording?.run) this.earlier = this.recording;
    this.recording = new Recording(run);
    this.row = this.selected = null;
    this.text.clear();
    this.find("count").textContent = "";
    this.find("share").textContent = POINT;
    this.find("candidates").textContent = "";
    this.find("place").textContent = this.find("memory").textContent = "click a token in the text";
    this.#list(run.picker);
    this.#show(Math.min(this.layer, run.layers.length - 1));
  }

  /** List the layers to choose from. @param {[number, string][]} picker */
  #list(picker) {
    const options = picker.map(([layer, label]) => new Option(label, layer));
    for (const option of options) option.disabled = option.value === "-1";
    this.find("layer").replaceChildren(...options);
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
    if (this.earlier) {
      const shared = await this.server.shared([this.run, this.earlier.run]).catch(() => 0);
      if (number !== this.polls) return;
      this.recording.take(this.earlier, shared ?? 0);
      this.earlier = null;
    }
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
    const { heatmaps, recording, layer } = this;
    const { grouped } = recording;
    const count = recording.pieces.length.toLocaleString("en");
    this.frame = undefined;
    heatmaps.update();
    this.text.update(recording);
    this.histogram.draw(recording, layer);
    this.find("count").textContent = recording.pieces.length
      ? `${count} tokens${grouped ? `, the first ${grouped.toLocaleString("en")} in groups` : ""}`
      : "";
    this.draws++;
    this.find("real").textContent = this.layers[layer].real ? "· 0: real transitions" : "";
    this.element.querySelectorAll(".means").forEach((place, i) => {
      place.textContent = sharedPixel(heatmaps.pictures[i]);
    });
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
    this.find("share").textContent = POINT;
    if (!this.run || !(token >= 0 && token < this.pieces.length)) return;
    this.selected = this.heatmaps.selected = token;
    this.text.update(recording); // a key may come before the frame that draws the token
    this.text.select(token);
    this.heatmaps.show();
    const row = await this.server.row([this.run, layer, token]).catch(() => null);
    const stale = recording !== this.recording || layer !== this.layer || token !== this.selected;
    if (!row || stale) return;
    this.row = row;
    this.text.explain(row);
    const { text } = this.pieces[token];
    this.find("memory").textContent =
      `in layer ${recording.layers[layer].label} when ${quoted(text)} (token ${token}) was read`;
    this.find("place").textContent = row.candidates.length
      ? `token ${token}`
      : "a token that was given, not drawn";
    this.find("candidates").replaceChildren(...candidateItems(row.candidates, text));
  }

  #tellShare(token) {
    if (this.row && token >= 0)
      this.find("share").textContent = remembered(this.row, token, this.pieces[token].text);
  }

  async #downloadArrays() {
    const url = this.run && (await this.server.arrays([this.run]).catch(() => null));
    if (url) download(url, "");
    else this.tip.textContent = "There is nothing to download yet.";
  }

  // ---- events ----
  #listen() {
    const { heatmaps } = this;
    const on = (name, event, listener) => this.find(name).addEventListener(event, listener);
    on("layer", "change", (event) => this.change(Number(event.target.value)));
    on("order", "change", () => this.repaint());
    on("zoom", "input", () => heatmaps.zoomed());
    on("scroll", "scroll", () => heatmaps.show());
    on("png", "click", () => downloadSheet(this));
    on("npz", "click", () => this.#downloadArrays());
    on("save-page", "click", () => saveView(this));
    for (const canvas of heatmaps.canvases) {
      canvas.addEventListener("mousemove", (event) => {
        this.tip.textContent = describe(
          this.recording,
          this.layer,
          this.codes,
          heatmaps.cell(event),
        );
      });
      canvas.addEventListener("mouseleave", () => {
        this.tip.textContent = "";
      });
      canvas.addEventListener("click", (event) => {
        const { of, token, places } = heatmaps.cell(event);
        if (of === "layers" && places[0] !== this.layer) this.change(places[0]);
        this.select(token);
      });
    }
    on("magnitude", "keydown", (event) => this.#key(event));
    on("text", "keydown", (event) => this.#key(event));
    const token = (event) => event.target.closest("span[data-token]")?.dataset.token;
    on("text", "click", (event) => this.select(Number(token(event) ?? -1)));
    on("text", "mouseover", (event) => this.#tellShare(Number(token(event) ?? -1)));
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
      this.heatmaps.zoomed();
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
