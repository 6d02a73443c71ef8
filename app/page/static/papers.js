/**
 * Surfaces that a figure is drawn on, in CSS pixels: a bitmap and a drawing of the same.
 * @typedef {{align?: "left" | "center" | "right", up?: boolean, ink?: string, bold?: boolean}} Style
 *     Text whose baseline runs upwards ends at its place if it is aligned right.
 */
const FAMILY = "system-ui, sans-serif";
const SVG = "http://www.w3.org/2000/svg";
const ANCHORS = { left: "start", center: "middle", right: "end" };
const font = (bold) => `${bold ? "bold " : ""}11px ${FAMILY}`;

const measuring = new Map(); // texts by width, as each takes a while

/** The width of a text. @param {string} text */
export function textWidth(text) {
  if (!measuring.has(text)) {
    if (measuring.size > 5000) measuring.clear();
    const context = document.createElement("canvas").getContext("2d");
    context.font = font(false);
    measuring.set(text, context.measureText(text).width);
  }
  return measuring.get(text);
}

/** A canvas. */
export class CanvasPaper {
  /** @param {CanvasRenderingContext2D} context @param {string} ink */
  constructor(context, ink) {
    Object.assign(this, { context, ink });
    context.textBaseline = "middle";
    context.imageSmoothingEnabled = false;
  }

  /** An empty one. @param {{ink: string, ground: string}} colours */
  static blank(width, height, { ink, ground }) {
    const ratio = window.devicePixelRatio || 1;
    const canvas = document.createElement("canvas");
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const paper = new CanvasPaper(context, ink);
    paper.rect(0, 0, width, height, ground);
    return paper;
  }

  rect(x, y, width, height, ink = this.ink) {
    this.context.fillStyle = ink;
    this.context.fillRect(x, y, width, height);
  }

  /** @param {string} text @param {number} x @param {number} y Its middle. @param {Style} style */
  text(text, x, y, { align = "left", up = false, ink = this.ink, bold = false } = {}) {
    const { context } = this;
    context.save();
    context.translate(x, y);
    if (up) context.rotate(-Math.PI / 2);
    Object.assign(context, { font: font(bold), fillStyle: ink, textAlign: align });
    context.fillText(text, 0, 0);
    context.restore();
  }

  image(canvas, x, y, width, height) {
    this.context.drawImage(canvas, x, y, width, height);
  }

  /** @returns {Promise<Blob>} */
  file() {
    return new Promise((resolve) => this.context.canvas.toBlob(resolve));
  }
}

/** A drawing, in which texts stay texts and pictures are embedded. */
export class SvgPaper {
  static blank(width, height, { ink, ground }) {
    const paper = new SvgPaper();
    const viewBox = `0 0 ${width} ${height}`;
    paper.ink = ink;
    paper.root = paper.#element("svg", { viewBox, width, height, "font-family": FAMILY });
    paper.rect(0, 0, width, height, ground);
    return paper;
  }

  /** Add an element; it is built, not written, so that no text is ever markup. */
  #element(name, attributes) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    this.root?.append(element);
    return element;
  }

  rect(x, y, width, height, fill = this.ink) {
    this.#element("rect", { x, y, width, height, fill });
  }

  text(text, x, y, { align = "left", up = false, ink = this.ink, bold = false } = {}) {
    this.#element("text", {
      transform: `translate(${x} ${y})${up ? " rotate(-90)" : ""}`,
      "text-anchor": ANCHORS[align],
      "dominant-baseline": "central",
      "font-size": 11,
      "font-weight": bold ? "bold" : "normal",
      "xml:space": "preserve",
      fill: ink,
    }).textContent = text;
  }

  image(canvas, x, y, width, height) {
    const style = "image-rendering: pixelated";
    const href = canvas.toDataURL();
    this.#element("image", { x, y, width, height, href, style, preserveAspectRatio: "none" });
  }

  async file() {
    return new Blob([new XMLSerializer().serializeToString(this.root)], { type: "image/svg+xml" });
  }
}
