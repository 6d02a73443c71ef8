import { bytes, halfLives } from "../../../mlx_gateloop/watch/shared/data.js";
import { css, lifeColours, MEAN_COLOURS, PHASE_COLOURS } from "./codes.js";
import { NO_REPLY } from "./counterfactual.js";
import { Heatmaps } from "./heatmaps.js";
import { listen } from "./listeners.js";
import { Memory } from "./memory.js";
import { Probes } from "./probes.js";
import { Recording } from "./recording.js";
import { download, save } from "./share.js";
import { Tip } from "./tip.js";
import { sharedPixel } from "./words.js";

const PAUSE_MS = 100; // the first pause after no answer, and the last, about 10 s later
const MAX_PAUSE_MS = 4000;

/** The live view of a run: draws the updates of its feed, and requests the rest. */
export class StateView {
  constructor(element, props, server) {
    Object.assign(this, { element, props, server });
    this.halfLife = halfLives(props.rates);
    this.heatmaps = new Heatmaps(element, lifeColours(this.halfLife));
    this.memory = new Memory(this);
    this.heatmaps.marks = this.memory;
    this.probes = new Probes(this);
    this.tip = new Tip(this.find("tip"));
    this.layer = 0;
    this.early = []; // updates that arrived out of order
    this.views = linked(this, props.linked);
    this.heatmaps.linked = () => this.views.map(({ recording }) => recording);
    this.#drawLegends();
    listen(this);
    this.start(null);
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
  get pieces() {
    return this.recording.pieces;
  }

  // ---- the run ----
  /** Show a run, or a hint; keep the layers of the last run until the next one starts. */
  start(value) {
    const none = { layers: [{ label: "1", channels: 1, real: false }], picker: [[0, "1"]] };
    const before = value?.hint ? null : this.recording; // a model without watched layers
    const run = value?.run ? value : { ...none, ...before, run: null };
    this.hint = this.find("note").textContent = value?.hint ?? "";
    this.find("with-system").hidden = !run.system;
    this.find("model").textContent = run.model ?? "";
    this.element.classList.toggle("empty", !run.run);
    // the number of layers may shrink during a run
    const same = run.run && run.run === this.run && run.layers.length === this.layers.length;
    if (same) return;
    this.find("saved").textContent = "";
    // the page may show nothing before the run that has the tokens of this one
    if (this.recording?.run) this.known = this.recording;
    const { known } = this;
    this.recording = new Recording(run);
    this.early = [];
    if (run.earlier && run.earlier === known?.run) this.recording.take(known, run.common);
    this.find("count").textContent = "";
    this.memory.start();
    this.#list(run.picker);
    this.#show(Math.min(this.layer, run.layers.length - 1));
    this.#notify();
  }

  /** Notify the words of the chat. */
  #notify() {
    this.element.dispatchEvent(new CustomEvent("update", { bubbles: true, detail: this }));
  }

  #list(picker) {
    const options = picker.map(([layer, label]) => new Option(label, layer));
    for (const option of options) option.disabled = option.value === "-1";
    this.find("layer").replaceChildren(...options);
  }

  change(layer) {
    this.#show(layer);
    if (this.run) this.#ask();
    if (this.memory.selected !== null) this.#select(this.memory.selected);
  }

  #show(layer) {
    this.layer = layer;
    this.find("layer").value = String(layer);
    this.repaint();
  }

  /** Add an update of the feed, or request everything. */
  receive(update) {
    if (!this.run) return;
    if (update) this.#add(JSON.parse(update));
    if (!update || !this.recording.has(this.layer)) this.#ask();
  }

  /** Request updates, one at a time, until nothing is missing. */
  async #ask() {
    const { recording } = this;
    if (this.asking === recording) return;
    this.asking = recording;
    for (let pause = PAUSE_MS; this.asking === recording; ) {
      const { have, layer, pieces, run } = this;
      const update = await this.server
        .updates_since([run, layer, have, pieces.length])
        .catch(() => null);
      if (this.recording !== recording) return;
      if (update) this.#add(update);
      if (update && recording.has(this.layer)) this.asking = null;
      if (!this.asking) this.early = [];
      if (update) continue;
      await new Promise((wake) => setTimeout(wake, pause)); // a busy server sends nothing for a while
      pause *= 1.5;
      if (pause < MAX_PAUSE_MS || this.recording !== recording) continue;
      this.asking = null;
      recording.done = true;
      this.find("note").textContent = "The server no longer has this run.";
    }
  }

  #add(update) {
    const { recording } = this;
    const wasDone = recording.done;
    this.early = [...this.early, update].filter((each) => !recording.add(each));
    if (update.resets) this.memory.text.mark(recording.resets);
    const ends = recording.done && !wasDone;
    if (update.resets || ends) this.heatmaps.invalidate();
    if (ends && this.memory.selected === null) this.#select(this.pieces.length - 1);
    for (const view of this.views) view.schedule(); // they share a scale
    this.#notify();
  }

  // ---- drawing ----
  repaint() {
    const order = this.find("order").value;
    this.heatmaps.reset(this.recording, this.layer, order === "sorted");
    this.schedule();
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    const { heatmaps, recording, layer } = this;
    const { grouped, unrecorded } = recording;
    const after = unrecorded ? ` after ${unrecorded.toLocaleString("en")} not recorded` : "";
    const count = recording.pieces.length.toLocaleString("en");
    this.frame = undefined;
    heatmaps.update();
    this.memory.update();
    this.find("count").textContent = recording.pieces.length
      ? `${count} tokens${after}${grouped ? `, the first ${grouped.toLocaleString("en")} in groups` : ""}`
      : "";
    this.find("real").textContent = this.layers[layer].real ? "· 0: real transitions" : "";
    heatmaps.canvases.forEach((canvas, i) => {
      const means = this.find(`caption:has(+ .${canvas.className}) .means`);
      means.textContent = sharedPixel(heatmaps.pictures[i]);
    });
  }

  /** Read sizes and colours; call this only when they change. */
  measure() {
    this.heatmaps.measure();
    this.schedule();
  }

  #drawLegends() {
    const legends = { half: MEAN_COLOURS, turn: PHASE_COLOURS, mean: MEAN_COLOURS };
    for (const [name, colours] of Object.entries(legends))
      this.find(name).style.background = `linear-gradient(90deg, ${[...colours].map(css)})`;
  }

  // ---- one token ----
  /** Show the retention of every token when this one was read. */
  select(token) {
    for (const view of this.views) view.#select(token);
    if (token in this.pieces)
      this.element.dispatchEvent(new CustomEvent("selected", { bubbles: true, detail: token }));
  }

  #select(token) {
    if (!this.run || !(token in this.pieces)) return;
    this.memory.select(token);
    this.heatmaps.box = null;
    this.heatmaps.reveal(token);
    this.heatmaps.show();
  }

  /** Highlight a token, or none. */
  point(token) {
    for (const view of this.views) {
      if (view.memory.pointed === token) continue;
      view.memory.point(token);
      view.heatmaps.show();
    }
  }

  // ---- files, scale ----
  /** Download the visible pictures and words as one image. */
  downloadPicture() {
    const { axis, canvases } = this.heatmaps;
    const [magnitude, phase, layers] = canvases;
    const parts = [layers, axis.surface.canvas, magnitude, phase];
    const sheet = document.createElement("canvas");
    sheet.width = layers.width;
    sheet.height = parts.reduce((height, part) => height + part.height, 0);
    const context = sheet.getContext("2d");
    context.fillStyle = getComputedStyle(document.body).backgroundColor;
    context.fillRect(0, 0, sheet.width, sheet.height);
    let top = 0;
    for (const part of parts) {
      context.drawImage(part, 0, top);
      top += part.height;
    }
    download(sheet.toDataURL(), `${this.recording.name ?? "gateloop"}-layer-${this.layer + 1}.png`);
  }

  async downloadArrays() {
    const file = this.run && (await this.server.arrays([this.run]).catch(() => null));
    const none = this.run ? NO_REPLY : "There is nothing to download yet.";
    if (file?.data) save(file.name, bytes(file.data));
    else this.find("note").textContent = file?.error ?? none;
  }

  /** Zoom and scroll the linked views like this one. */
  syncLinked() {
    for (const view of this.views) if (view !== this) view.heatmaps.follow(this.heatmaps);
  }
}

/** Views by the name of their group. @type {Map<string, import("./state_view.js").StateView[]>} */
const groups = new Map();

/** All views of a group, including this one. */
function linked(view, name) {
  if (!name) return [view];
  const group = groups.get(name) ?? [];
  const there = group.filter(({ element }) => element.isConnected);
  group.splice(0, group.length, ...there, view); // the others share this array
  groups.set(name, group);
  return group;
}

/** Functions that show a feed's value in its view, by the view's id; either may load first. */
const feeds = new Map();

/** Attach a state view to a gr.HTML; the arguments come from js_on_load. */
export function show(id, element, props, server) {
  const section = element.querySelector(".gl");
  section.view = new StateView(section, props, server);
  feeds.get(id)?.();
}

/** Attach a feed to a gr.HTML. */
export function follow(id, props, watch) {
  const changed = () => {
    const view = document.querySelector(`#${id} .gl`)?.view;
    view?.start(props.value);
    view?.receive(props.value?.update);
  };
  feeds.set(id, changed);
  watch("value", changed);
  changed();
}
