/** CSS custom highlights: colours for parts of a text, without changes of its elements. */
export const canPaint = typeof Highlight === "function" && Boolean(globalThis.CSS?.highlights);
const LEVELS = 9; // above the faintest
const KINDS = ["fade", "lost", "gained", "forgotten", "chosen"]; // later ones take precedence

/** The level of a strength, or of any share, from 0 to 1. */
export const level = (share) => Math.round(Math.min(1, Math.max(0, share)) * LEVELS);

/** Highlight ranges by level. */
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

const mix = (colour, percent) => `color-mix(in srgb, var(--${colour}) ${percent}, transparent)`;

/** Add the colours of the levels; chat_words.css has the other colours. */
function addColours() {
  const rules = [["fade-later", `color: ${mix("body-text-color", "36%")}`]];
  for (let n = 0; n < LEVELS; n++) {
    const share = `calc(var(--gw-faint) + (100% - var(--gw-faint)) * ${n} / ${LEVELS})`;
    rules.push([`fade-${n}`, `color: ${mix("body-text-color", share)}`]);
    for (const [kind, colour] of Object.entries({ lost: "gw-hot", gained: "gw-cold" }))
      rules.push([`${kind}-${n + 1}`, `background-color: ${mix(colour, `${12 + 8 * n}%`)}`]);
  }
  const css = rules.map(([of, style]) => `#chat .chatbot::highlight(gw-${of}) { ${style} }`);
  const style = Object.assign(document.createElement("style"), { textContent: css.join("\n") });
  document.head.append(style);
}

if (canPaint) addColours();
