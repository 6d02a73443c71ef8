/** A canvas drawn on in CSS pixels, at the resolution of the screen. */
export class Surface {
  constructor(canvas) {
    this.canvas = canvas;
  }

  /** Read the size; call this only when it may have changed, because it costs a layout. */
  measure() {
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
  }

  context() {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.round(this.width * ratio);
    const height = Math.round(this.height * ratio);
    if (this.canvas.width !== width || this.canvas.height !== height)
      Object.assign(this.canvas, { width, height }); // clears it
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
  }
}
