import { plain } from "../../../mlx_gateloop/watch/shared/plain.js";
import { download } from "./downloads.js";
import { textWidth } from "./papers.js";
import { ticks } from "./scale.js";
import { AXIS_HEIGHT, drawAxis } from "./word_axis.js";

const LEFT = 76; // CSS pixels, the axes of the rows
const GAP = 14;
const LINE = 20;
const MOST_LINES = 30; // of text
const TICK_WIDTH = 70;

/** A growing figure, part by part; `y` is where the next one begins. */
class Sheet {
  constructor(width) {
    Object.assign(this, { width, y: GAP, parts: [] });
  }

  draw(part) {
    this.parts.push(part);
  }

  write(text, x = 0, align = "left", bold = false) {
    const y = this.y + LINE / 2;
    this.draw((paper) => paper.text(text, LEFT + x, y, { align, bold }));
  }

  /** A canvas with its caption above, the colours' legend and the rows' axis. */
  panel(canvas, rows, unit) {
    let caption = canvas.previousElementSibling;
    while (!caption.matches(".caption")) caption = caption.previousElementSibling;
    const [low, high] = caption.querySelectorAll(".legend i");
    const key = caption.querySelector("canvas");
    const texts = [...caption.childNodes].filter((part) => !part.matches?.(".legend, .why"));
    const [title, ...rest] = texts.map((part) => part.textContent.trim()).filter(Boolean);
    this.write(`${title}: ${rest.join(" ")}`);
    this.write(high.textContent, this.width, "right");
    const right = this.width - textWidth(high.textContent) - 6;
    const { width, y } = this;
    this.draw((paper) => paper.image(key, LEFT + right - 90, y + 6, 90, 8));
    this.write(low.textContent, right - 96, "right");
    this.y += LINE;
    const [top, height] = [this.y, canvas.clientHeight];
    this.draw((paper) => paper.image(canvas, LEFT, top, width, height));
    this.write(`${unit} ${rows[0]}`, -6, "right");
    this.y += height - LINE;
    this.write(rows[1], -6, "right");
    this.y += LINE;
  }

  /** The words below a picture. @param {object} shown As `drawAxis` takes it. */
  words(shown) {
    const { y } = this;
    this.draw((paper) => drawAxis(paper, shown, LEFT, y));
    this.y += AXIS_HEIGHT;
  }

  /** The numbers of the tokens. */
  numbers(first, width, end) {
    const { y } = this;
    for (const token of ticks(first, end, this.width / TICK_WIDTH)) {
      const x = (token - first + 0.5) * width;
      this.draw((paper) => {
        paper.rect(LEFT + x, y, 1, 4);
        paper.text(String(token), LEFT + x, y + 14, { align: "center" });
      });
    }
    this.y += 4;
    this.write("token", -14, "right");
    this.y += LINE;
  }

  text(lines, bold = false) {
    for (const line of lines) {
      this.write(line, 0, "left", bold);
      this.y += LINE;
    }
  }

  /** All of it. @param {typeof import("./papers.js").CanvasPaper | typeof import("./papers.js").SvgPaper} Paper */
  on(Paper, colours) {
    const paper = Paper.blank(LEFT + this.width + GAP, this.y + GAP, colours);
    for (const part of this.parts) part(paper);
    return paper.file();
  }
}

/** Texts of tokens in lines that are no wider than `width`. */
function wrapped(texts, width) {
  const lines = [""];
  let room = width;
  for (const part of texts.flatMap((text) => text.split(/(?<=\n)/))) {
    const shown = part.replace("\n", "");
    const wide = textWidth(shown);
    if (wide > room && lines.at(-1)) {
      lines.push("");
      room = width;
    }
    lines[lines.length - 1] += shown;
    room -= wide;
    if (part.endsWith("\n")) {
      lines.push("");
      room = width;
    }
    if (lines.length > MOST_LINES) return [...lines.slice(0, MOST_LINES - 1), "..."];
  }
  return lines;
}

/** A view as a figure: pictures with captions, legends and axes, and the text. */
function figure(view) {
  const { axis, canvases, shown, sorted, surfaces } = view.heatmaps;
  const { layers, pieces, name } = view.recording;
  const { channels, label } = layers[view.layer];
  const sheet = new Sheet(surfaces[0].width);
  const { first, width } = shown;
  const end = Math.min(pieces.length, first + sheet.width / width);
  const inSight = pieces.slice(Math.floor(first), Math.ceil(end));
  const [magnitude, phase, all] = canvases;
  sheet.text([name ?? "GateLoop"], true);
  sheet.panel(all, [1, layers.length], "layer");
  sheet.words(axis.shown(shown, view.heatmaps.marks));
  sheet.text([`Layer ${label} of ${layers.length}`], true);
  for (const canvas of [magnitude, phase]) {
    sheet.panel(canvas, sorted ? ["", ""] : [0, channels - 1], sorted ? "longest" : "channel");
    sheet.y += GAP / 2;
  }
  sheet.numbers(first, width, end);
  sheet.text(
    wrapped(
      inSight.map(({ special, text }) => (special ? "◇" : plain(text))),
      sheet.width,
    ),
  );
  return sheet;
}

/**
 * Download what a view shows as a figure.
 * @param {import("./state_view.js").StateView} view
 * @param {typeof import("./papers.js").CanvasPaper | typeof import("./papers.js").SvgPaper} Paper
 * @param {"png" | "svg"} kind
 */
export async function downloadSheet(view, Paper, kind) {
  const ink = getComputedStyle(view.element).color;
  const ground = getComputedStyle(document.body).backgroundColor;
  const url = URL.createObjectURL(await figure(view).on(Paper, { ink, ground }));
  download(url, `${view.recording.name ?? "gateloop"}-layer-${view.layer + 1}.${kind}`);
  setTimeout(() => URL.revokeObjectURL(url), 1e4);
}
