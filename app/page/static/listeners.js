import { describe } from "./describe.js";
import { gestures } from "./gestures.js";
import { saveView } from "./share.js";

const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
const ROWS = { ArrowUp: -1, ArrowDown: 1 };
const ZOOMS = { "+": 1, "=": 1, "-": -1, 0: -1e9 };
const LAYERS = 2;

/** Add the listeners of a view's controls, pictures and words. */
export function listen(view) {
  const { heatmaps, memory, tip } = view;
  const on = (name, event, listener) => view.find(name).addEventListener(event, listener);
  on("layer", "change", (event) => view.change(Number(event.target.value)));
  on("order", "change", () => view.repaint());
  on("png", "click", () => view.downloadPicture());
  on("npz", "click", () => view.downloadArrays());
  on("save-page", "click", () => saveView(view));
  listenToScale(view);
  for (const canvas of heatmaps.canvases) new Cursor(view, canvas);
  on("axis", "pointermove", (event) => {
    const { token } = heatmaps.cell(event);
    view.point(token in view.pieces ? token : null);
    tip.show(memory.describe(token), event.clientX, event.clientY);
  });
  on("axis", "click", (event) => view.select(heatmaps.cell(event).token));
  const token = (event) => event.target.closest("span[data-token]")?.dataset.token;
  on("text", "click", (event) => view.select(Number(token(event) ?? -1)));
  on("text", "mouseover", (event) => {
    const at = token(event) === undefined ? null : Number(token(event));
    view.point(at);
    tip.show(memory.describe(at), event.clientX, event.clientY);
  });
  on("text", "keydown", (event) => key(view, event));
  for (const name of ["axis", "text", "magnitude", "phase", "layers"])
    for (const event of ["pointerleave", "blur"])
      on(name, event, () => {
        tip.hide();
        view.point(null);
      });
  new ResizeObserver(() => view.measure()).observe(heatmaps.scroll);
  new MutationObserver(() => view.measure()).observe(document.body, { attributeFilter: ["class"] });
}

/** Zoom and scroll a view together with its linked views. */
function listenToScale(view) {
  const { heatmaps } = view;
  const sync = (change) => {
    change();
    view.syncLinked();
  };
  heatmaps.zoom.addEventListener("input", () => sync(() => heatmaps.zoomed()));
  heatmaps.scroll.addEventListener("scroll", () => {
    heatmaps.show();
    if (heatmaps.scroll.scrollLeft !== heatmaps.followed) view.syncLinked();
    heatmaps.followed = undefined;
  });
  gestures([...heatmaps.canvases, view.find("axis")], {
    pan: (pixels) => sync(() => heatmaps.pan(pixels)),
    magnify: (factor, x) => sync(() => heatmaps.magnify(factor, x)),
    reset: () => zoom(view, -1e9),
  });
}

function zoom(view, steps) {
  view.heatmaps.zoom.valueAsNumber += steps;
  view.heatmaps.zoomed();
  view.syncLinked();
}

/** The cell of a picture under the pointer, or chosen by keys. */
class Cursor {
  constructor(view, canvas) {
    Object.assign(this, { view, canvas, index: view.heatmaps.canvases.indexOf(canvas), row: 0 });
    canvas.addEventListener("pointermove", (event) => {
      this.#showTip(view.heatmaps.cell(event), [event.clientX, event.clientY]);
    });
    canvas.addEventListener("click", (event) => {
      if (this.index || !view.heatmaps.box) this.#choose(view.heatmaps.cell(event));
    });
    if (this.index === 0) this.#drawBoxes();
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Choose the channels and tokens of a box that is drawn while Shift is held. */
  #drawBoxes() {
    const { canvas, view } = this;
    const { heatmaps } = view;
    let corner = null;
    canvas.addEventListener("pointerdown", (event) => {
      corner = event.shiftKey && !event.button ? heatmaps.cell(event) : null;
      heatmaps.box = null;
      if (corner) canvas.setPointerCapture(event.pointerId); // the box may end outside
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!corner) return;
      heatmaps.box = heatmaps.between(corner, heatmaps.cell(event));
      heatmaps.show();
    });
    canvas.addEventListener("pointerup", () => {
      const detail = corner && heatmaps.box;
      corner = null;
      if (!detail) return;
      canvas.dispatchEvent(new CustomEvent("box", { bubbles: true, detail }));
      heatmaps.box = detail; // the selection of its last word has removed it
      heatmaps.show();
    });
  }

  /** Show a tip about a cell. */
  #showTip(cell, position) {
    const { view } = this;
    this.row = cell.row;
    view.point(cell.token in view.pieces ? cell.token : null);
    view.tip.show(describe(view.recording, view.layer, view.halfLife, cell), ...position);
  }

  #choose({ token, indices }) {
    const { view } = this;
    if (this.index === LAYERS && indices[0] !== view.layer) view.change(indices[0]);
    view.select(token);
  }

  #key(event) {
    const { view, index } = this;
    const { heatmaps } = view;
    const moved = key(view, event);
    const step = ROWS[event.key];
    if (step === undefined && !moved && event.key !== "Enter") return;
    const token = view.memory.selected;
    if (token === null) return;
    event.preventDefault();
    const cell = heatmaps.cellAt(index, token, this.row + (step ?? 0));
    if (event.key === "Enter") this.#choose(cell);
    this.#showTip(cell, heatmaps.middle(index, token, cell.row));
  }
}

/** Select another token, point at one, or zoom. @returns {boolean} True if it selected one. */
function key(view, event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return false; // browser shortcuts
  const step = STEPS[event.key];
  const zooms = ZOOMS[event.key];
  if (step === undefined && zooms === undefined) return false;
  event.preventDefault();
  if (zooms) zoom(view, zooms);
  if (step === undefined) return false;
  const { pointed, selected } = view.memory;
  const last = view.pieces.length - 1;
  const at = event.shiftKey ? (pointed ?? selected) : selected;
  const token = Math.min(last, Math.max(0, (at ?? last) + step));
  if (event.shiftKey) view.point(token);
  else view.select(token);
  return !event.shiftKey;
}
