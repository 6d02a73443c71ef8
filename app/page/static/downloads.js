/** Download what a URL holds. @param {string} href @param {string} name The file's name. */
export function download(href, name) {
  Object.assign(document.createElement("a"), { href, download: name }).click();
}

/**
 * Download canvases, one below the other, as a PNG.
 * @param {HTMLCanvasElement[]} canvases All of one width.
 * @param {string} name The file's name.
 */
export function downloadPicture(canvases, name) {
  const gap = 8 * (window.devicePixelRatio || 1);
  const sheet = document.createElement("canvas");
  sheet.width = canvases[0].width;
  sheet.height = canvases.reduce((sum, canvas) => sum + canvas.height + gap, -gap);
  const context = sheet.getContext("2d");
  let top = 0;
  for (const canvas of canvases) {
    context.drawImage(canvas, 0, top);
    top += canvas.height + gap;
  }
  sheet.toBlob((blob) => {
    const url = URL.createObjectURL(blob);
    download(url, name);
    setTimeout(() => URL.revokeObjectURL(url), 1e4);
  });
}
