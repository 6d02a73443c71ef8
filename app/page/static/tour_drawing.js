import { plain } from "../../../mlx_gateloop/watch/shared/plain.js";

const SVG = "http://www.w3.org/2000/svg";
const HEAD = 8; // size of an arrowhead, pixels
const DEGREES = 180 / Math.PI;

export const times = ([a, b], [c, d]) => [a * c - b * d, a * d + b * c];
export const size = (x) => Math.hypot(...x);
export const degrees = ([re, im]) => Math.atan2(im, re) * DEGREES;

/** Format a number with a real minus sign. */
export const decimals = (x, digits = 2) => x.toFixed(digits).replace("-", "−");

export function complex([re, im], digits = 2) {
  return `${decimals(re, digits)} ${im < 0 ? "−" : "+"} ${Math.abs(im).toFixed(digits)}i`;
}

/** What remains of each token's k v in the state after a later one: exact parts of h. */
export function left({ a, k, v }, end) {
  let since = [1, 0];
  const parts = [];
  for (let token = end; token >= 0; token--) {
    parts.unshift(since.map((x) => x * k[token] * v[token]));
    since = times(since, a[token]);
  }
  return parts;
}

/** The shares of a token that remain after it and after each later one. */
export function shares(sizes, token, end) {
  const kept = [1];
  for (let n = token + 1; n <= end; n++) kept.push(kept.at(-1) * sizes[n]);
  return kept;
}

/** Make an HTML element with a class and children. */
export function box(tag, className, ...children) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...children);
  return element;
}

export function shape(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function drawing(width, height, label, ...children) {
  const sizes = { width, height, viewBox: `0 0 ${width} ${height}` };
  return shape("svg", { ...sizes, role: "img", "aria-label": label }, ...children);
}

export const line = (x1, y1, x2, y2, name) => shape("line", { x1, y1, x2, y2, class: name });

export const text = (x, y, name, words, more = {}) =>
  shape("text", { x, y, class: name, ...more }, words);

/** An arrow, or a point if it is too short. */
export function arrow(x, y, dx, dy, name) {
  const length = Math.hypot(dx, dy);
  if (length < 2) return shape("circle", { cx: x, cy: y, r: 3, class: `${name} head` });
  const [ux, uy] = [dx / length, dy / length];
  const head = Math.min(HEAD, length);
  const [bx, by] = [x + dx - head * ux, y + dy - head * uy];
  const side = 0.5 * head;
  const points = [
    [x + dx, y + dy],
    [bx - side * uy, by + side * ux],
    [bx + side * uy, by - side * ux],
  ];
  const shaft = line(x, y, bx, by, name);
  return shape(
    "g",
    {},
    shaft,
    shape("polygon", { points: points.join(" "), class: `${name} head` }),
  );
}

/** The label of a token; special tokens have none. */
export function word({ texts, kinds }, token) {
  return kinds[token] === "special" ? "" : plain(texts[token]).trim() || "␣";
}

/** Rotated words below columns. */
export function axis(recorded, tokens, place, y, marked) {
  return tokens.map((token) => {
    const name = token === marked ? "word marked" : "word";
    const at = place(token);
    const turn = `rotate(-60 ${at} ${y})`;
    return text(at, y, name, word(recorded, token), { transform: turn, "text-anchor": "end" });
  });
}
