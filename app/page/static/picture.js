/** A picture with one pixel per cell, some rows at some tokens; paints each cell once. */
const WIDEST = 65_535; // pixels of a canvas

export class Picture {
  constructor(indices, row, bin) {
    Object.assign(this, { indices, row, bin });
    this.canvas = Picture.#canvas(512, indices.length);
    this.tokens = 0;
  }

  static #canvas(width, height) {
    return Object.assign(document.createElement("canvas"), { width, height });
  }

  /** Paint the cells of the tokens up to `end` that are not painted yet. */
  paint(end, colour) {
    const { indices, bin } = this;
    const { width, height } = this.canvas;
    if (end <= this.tokens) return;
    const start = Math.floor(this.tokens / bin); // its last cell may be incomplete
    const count = Math.ceil(end / bin) - start;
    if (start + count >= width) {
      // keep an empty column after the last one
      const old = this.canvas;
      const wider = Math.max(start + count + 1, Math.min(2 * width, WIDEST));
      this.canvas = Picture.#canvas(wider, height);
      this.canvas.getContext("2d").drawImage(old, 0, 0);
    }
    const image = new ImageData(count, height);
    const pixels = new Uint32Array(image.data.buffer);
    for (let row = 0; row < height; row++)
      for (let i = 0; i < count; i++) {
        const from = (start + i) * bin;
        pixels[row * count + i] = colour(from, Math.min(from + bin, end), indices[row]);
      }
    this.canvas.getContext("2d").putImageData(image, start, 0);
    this.tokens = end;
  }
}
