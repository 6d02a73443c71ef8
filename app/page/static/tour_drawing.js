import { plain } from "../../../mlx_gateloop/watch/shared/plain.js";

const SVG = "http://www.w3.org/2000/svg";

/** Format a number with a real minus sign. */
export const decimals = (x, digits = 2) => x.toFixed(digits).replace("-", "−");

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

/** The label of a token; special tokens have none. */
export function word({ texts, kinds }, token) {
  return kinds[token] === "special" ? "" : plain(texts[token]).trim() || "␣";
}

/** Rotated words below columns. */
export function axis(recorded, tokens, xOf, y, marked) {
  return tokens.map((token) => {
    const name = token === marked ? "word marked" : "word";
    const at = xOf(token);
    const turn = `rotate(-60 ${at} ${y})`;
    return text(at, y, name, word(recorded, token), { transform: turn, "text-anchor": "end" });
  });
}
