import { meanLine } from "./means.js";
import { lineBin } from "./scale.js";

const RANGE = "#0007"; // colour of the range of tokens that share a point
const LINE = { "#000a": 3.5, "#7df9ff": 1.5 }; // widths by colour, the outline first

/** Draw the mean magnitude of all layers; narrow tokens share a point, with their range. */
export function drawMeanLine(context, averages, { place, first, last, each, height }) {
  const y = (value) => 3 + (height - 6) * (1 - value / 255);
  const stop = Math.min(Math.ceil(last), averages.length);
  const bin = lineBin(each);
  const points = meanLine(averages, Math.floor(first), stop, bin);
  if (bin > 1) {
    context.beginPath();
    for (const { at, high } of points) context.lineTo(place(at), y(high));
    for (const { at, low } of points.reverse()) context.lineTo(place(at), y(low));
    context.fillStyle = RANGE;
    context.fill();
  }
  context.beginPath();
  context.lineJoin = "round";
  for (const { at, mean } of points) context.lineTo(place(at), y(mean));
  for (const [strokeStyle, lineWidth] of Object.entries(LINE)) {
    Object.assign(context, { strokeStyle, lineWidth });
    context.stroke();
  }
}
