/** Colours of the browser's own for parts of a text, whose elements stay as they are. */
export const canPaint = typeof Highlight === "function" && Boolean(globalThis.CSS?.highlights);
const LEVELS = 9; // above the faintest
const KINDS = ["fade", "lost", "gained", "forgotten", "chosen"]; // the last ones win

/** The level of a strength, or of any share, from 0 to 1. */
export const level = (share) => Math.round(Math.min(1, Math.max(0, share)) * LEVELS);

/**
 * Paint ranges; chat_words.css has the colours.
 * @param {"fade" | "lost" | "gained" | "forgotten" | "chosen"} kind What has been painted of it before is gone.
 * @param {Map<string | number, Range[]>} ranges By level.
 */
export function paint(kind, ranges = new Map()) {
  if (!canPaint) return;
  const old = [...CSS.highlights.keys()].filter((name) => name.startsWith(`gw-${kind}-`));
  for (const name of old) CSS.highlights.delete(name);
  for (const [of, parts] of ranges) {
    const highlight = new Highlight(...parts);
    highlight.priority = KINDS.indexOf(kind);
    CSS.highlights.set(`gw-${kind}-${of}`, highlight);
  }
}
