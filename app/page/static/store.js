// Columns as they come, and pictures that are painted once.
/** Bytes that grow by whole records. */
class Store {
  constructor(size) { this.size = size; this.length = 0; this.data = new Uint8Array(size * 256); }
  append(at, values) { // what is known already stays
    const skip = (this.length - at) * this.size;
    if (skip < 0 || skip >= values.length) return;
    const end = this.length * this.size + values.length - skip;
    if (end > this.data.length) {
      const larger = new Uint8Array(Math.max(end, 2 * this.data.length));
      larger.set(this.data);
      this.data = larger;
    }
    this.data.set(values.subarray(skip), this.length * this.size);
    this.length = end / this.size;
  }
}

/** A picture of one pixel a token, widened in steps. */
class Picture {
  constructor(height) { this.canvas = document.createElement("canvas"); this.canvas.height = height; this.canvas.width = 512; this.done = 0; }
  paint(until, level) { // level(token, row) is a colour
    const count = until - this.done, height = this.canvas.height;
    if (count <= 0) return;
    if (until > this.canvas.width) {
      const old = this.canvas;
      this.canvas = document.createElement("canvas");
      this.canvas.width = Math.max(until, 2 * old.width);
      this.canvas.height = height;
      this.canvas.getContext("2d").drawImage(old, 0, 0);
    }
    const image = new ImageData(count, height), pixels = new Uint32Array(image.data.buffer);
    for (let row = 0; row < height; row++)
      for (let token = 0; token < count; token++) pixels[row * count + token] = level(this.done + token, row);
    this.canvas.getContext("2d").putImageData(image, this.done, 0);
    this.done = until;
  }
}
