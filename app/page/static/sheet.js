import { plain } from "../../../mlx_gateloop/watch/shared/plain.js";
import { download } from "./downloads.js";
import { ticks } from "./scale.js";

const LEFT = 76; // CSS pixels, the axes of the rows
const GAP = 14;
const LINE = 20;
const MOST_LINES = 30; // of text
const FONT = "12px system-ui, sans-serif";
const TICK_WIDTH = 70;

/** A growing picture; `y` is where the next part begins. */
class Sheet {
  constructor(width, height, { ink, ground }) {
    const ratio = window.devicePixelRatio || 1;
    this.canvas = Object.assign(document.createElement("canvas"), {
      width: Math.round((LEFT + width + GAP) * ratio),
      height: Math.round(height * ratio),
    });
    this.context = this.canvas.getContext("2d");
    this.context.scale(ratio, ratio);
    this.context.fillStyle = ground;
    this.context.fillRect(0, 0, LEFT + width + GAP, height);
    Object.assign(this, { width, y: GAP, ratio });
    Object.assign(this.context, { fillStyle: ink, font: FONT, textBaseline: "top" });
  }

  write(text, x = 0, align = "left") {
    this.context.textAlign = align;
    this.context.fillText(text, LEFT + x, this.y);
  }

  /** A canvas with its caption above, the colours' legend and the rows' axis. */
  panel(canvas, rows, unit) {
    const { context } = this;
    const caption = canvas.previousElementSibling;
    const legend = caption.querySelector(".legend");
    const [low, high] = legend.querySelectorAll("i");
    const key = legend.querySelector("canvas");
    const texts = [...caption.childNodes].filter((part) => part !== legend);
    this.write(texts.map((part) => part.textContent.trim()).join(" "));
    this.write(high.textContent, this.width, "right");
    const right = this.width - context.measureText(high.textContent).width - 6;
    context.drawImage(key, LEFT + right - 90, this.y + 2, 90, 8);
    this.write(low.textContent, right - 96, "right");
    this.y += LINE;
    const height = canvas.clientHeight;
    context.imageSmoothingEnabled = false;
    context.drawImage(canvas, LEFT, this.y, this.width, height);
    this.write(`${unit} ${rows[0]}`, -6, "right");
    this.y += height - 12;
    this.write(rows[1], -6, "right");
    this.y += 12;
  }

  /** The numbers of the tokens. */
  axis(first, width, end) {
    const { context } = this;
    for (const token of ticks(first, end, this.width / TICK_WIDTH)) {
      const x = (token - first + 0.5) * width;
      context.fillRect(LEFT + x, this.y, 1, 4);
      this.y += 6;
      this.write(String(token), x, "center");
      this.y -= 6;
    }
    this.y += 6;
    this.write("token", -14, "right");
    this.y += LINE;
  }

  text(lines) {
    for (const line of lines) {
      this.write(line);
      this.y += LINE;
    }
  }
}

/** Texts of tokens in lines that are no wider than `width`. */
function wrapped(texts, context, width) {
  const lines = [""];
  for (const [i, part] of texts.flatMap((text) => text.split(/(?<=\n)/)).entries()) {
    if (i && context.measureText(lines.at(-1) + part).width > width) lines.push("");
    lines[lines.length - 1] += part.replace("\n", "");
    if (part.endsWith("\n")) lines.push("");
    if (lines.length > MOST_LINES) return [...lines.slice(0, MOST_LINES - 1), "..."];
  }
  return lines;
}

/**
 * Download what a view shows as a PNG: the pictures with captions, legends and axes, and the text.
 * @param {import("./state_view.js").StateView} view
 */
export function downloadSheet(view) {
  const { canvases, surfaces, shown } = view.heatmaps;
  const { layers, pieces, name } = view.recording;
  const { channels, label } = layers[view.layer];
  const width = surfaces[0].width;
  const first = shown?.first ?? 0;
  const end = Math.min(pieces.length, first + width / shown.width);
  const style = getComputedStyle(view.element);
  const colours = { ink: style.color, ground: getComputedStyle(document.body).backgroundColor };
  const texts = pieces.slice(Math.floor(first), Math.ceil(end)).map(({ text }) => plain(text));
  const lines = wrapped(texts, new Sheet(1, 1, colours).context, width);
  const pictures = canvases.reduce((sum, canvas) => sum + canvas.clientHeight + LINE + GAP, 0);
  const sheet = new Sheet(width, pictures + (lines.length + 3) * LINE + 3 * GAP, colours);
  const title = [name ?? "GateLoop", `layer ${label} of ${layers.length}`];
  sheet.text([title.join(" · ")]);
  const sorted = view.heatmaps.sorted;
  for (const [i, canvas] of canvases.entries()) {
    const rows = i === 2 ? [1, layers.length] : sorted ? ["", ""] : [0, channels - 1];
    sheet.panel(canvas, rows, i === 2 ? "layer" : sorted ? "longest" : "channel");
    if (i < 2) sheet.y += GAP;
  }
  sheet.axis(first, shown.width, end);
  sheet.text(lines);
  sheet.canvas.toBlob((blob) => {
    const url = URL.createObjectURL(blob);
    download(url, `${name ?? "gateloop"}-layer-${view.layer + 1}.png`);
    setTimeout(() => URL.revokeObjectURL(url), 1e4);
  });
}
