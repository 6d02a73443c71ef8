/** A picture of one pixel a token and row; each token is painted once. */
export class Picture {
  /** @param {number} height Rows. */
  constructor(height) {
    this.canvas = Picture.#canvas(512, height);
    this.tokens = 0;
  }

  static #canvas(width, height) {
    return Object.assign(document.createElement("canvas"), { width, height });
  }

  /**
   * Paint the tokens up to `end` that are not painted yet.
   * @param {number} end
   * @param {(token: number, row: number) => number} colour As 0xAABBGGRR.
   */
  paint(end, colour) {
    const count = end - this.tokens;
    const { width, height } = this.canvas;
    if (count <= 0) return;
    if (end > width) {
      const old = this.canvas;
      this.canvas = Picture.#canvas(Math.max(end, 2 * width), height);
      this.canvas.getContext("2d").drawImage(old, 0, 0);
    }
    const image = new ImageData(count, height);
    const pixels = new Uint32Array(image.data.buffer);
    for (let row = 0; row < height; row++)
      for (let i = 0; i < count; i++) pixels[row * count + i] = colour(this.tokens + i, row);
    this.canvas.getContext("2d").putImageData(image, this.tokens, 0);
    this.tokens = end;
  }
}
