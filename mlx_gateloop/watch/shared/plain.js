/** Safe display of model output. */
const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const CONTROLS = /(?![\n\t])[\p{Cc}\p{Cs}\ufffe\uffff]/gu; // also invalid in XML
const code = (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`;

/** Replace bidirectional marks and control characters by codes. */
export const plain = (text) =>
  text.replaceAll("\r\n", "\n").replace(DIRECTIONS, code).replace(CONTROLS, code);

/** Shorten and quote a text. @param {string} text */
export function quoted(text) {
  const letters = [...plain(text).replaceAll("\n", "↵")];
  return `“${letters.length > 40 ? `${letters.slice(0, 39).join("")}…` : letters.join("")}”`;
}

/** Format a share from 0 to 1. @param {number} share */
export function percent(share) {
  if (share > 0 && share < 0.001) return "less than 0.1%";
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
}

/** Describe the strength of a token. @param {number | null} share Relative to the strongest. */
export const strong = (share) =>
  share === null
    ? "too long ago to be known"
    : `${percent(share)} as strong as the strongest token`;

/** Format a number of tokens. @param {number} tokens */
export function inTokens(tokens) {
  if (tokens < 1) return "less than a token";
  if (tokens >= 1e4) return "more than 10,000 tokens";
  const shown = tokens < 10 ? tokens.toFixed(1) : Math.round(tokens).toLocaleString("en");
  return `${shown} tokens`;
}
