import { axis, box, decimals, drawing, line, shape, shares, text, word } from "./tour_drawing.js";

const LABELS = 54; // pixels for rotated words below columns
const EDGE = 40; // pixels for the scale left of a picture
const AFTER = 3; // tokens after the one that reads

/** The share of a word that remains in three channels, by word. */
export function curves(recorded, width) {
  const { sizes, read, written } = recorded;
  const end = read + AFTER;
  const [height, top] = [210, 8];
  const xOf = (token) => EDGE + ((width - EDGE - 16) * (token - written)) / (end - written);
  const level = (share) => top + (height - top) * (1 - share);
  const names = ["kept", "after", "wrote"];
  const tokens = Array.from({ length: end - written + 1 }, (_, i) => written + i);
  const halves = [];
  const paths = sizes.map((each, i) => {
    const kept = shares(each, written, each.length - 1);
    halves.push(kept.findIndex((share) => share < 0.5));
    const points = tokens.map((token, n) => `${xOf(token)},${level(kept[n])}`).join(" ");
    return shape("polyline", { points, class: `curve ${names[i]}` });
  });
  const scale = [0, 0.5, 1].flatMap((share) => [
    line(EDGE, level(share), width - 16, level(share), share === 0.5 ? "half" : "thin"),
    text(EDGE - 6, level(share) + 4, "scale", `${100 * share}%`, { "text-anchor": "end" }),
  ]);
  const labels = axis(recorded, tokens, (token) => xOf(token) + 3, height + 14, written);
  const about = "What remains of the word split in three channels";
  const svg = drawing(width, height + LABELS, about, ...scale, ...paths, ...labels);
  const keys = ["a short memory", "a longer one", "a long memory"].map((name, i) =>
    box("span", names[i], `${name}: half is gone after ${halves[i]} words`),
  );
  return [svg, box("div", "key", ...keys)];
}

/** A bar chart over words; values may be negative. */
function columns(recorded, width, { tokens, values, height, name, label, marked, extra = [] }) {
  const most = Math.max(...values, 0);
  const least = Math.min(...values, 0);
  const level = (value) => 16 + ((height - 16) * (most - value)) / (most - least);
  const each = (width - EDGE) / tokens.length;
  const bars = values.map((value, i) => {
    const [y, base] = [level(Math.max(value, 0)), level(Math.min(value, 0))];
    const area = { x: EDGE + i * each + 1, width: Math.max(each - 2, 1) };
    const bar = shape("rect", { ...area, y, height: base - y, class: name(tokens[i]) });
    bar.append(shape("title", {}, `${word(recorded, tokens[i])} ${decimals(value)}`));
    return bar;
  });
  const xOf = (token) => EDGE + (tokens.indexOf(token) + 0.5) * each + 4;
  const labels = axis(recorded, tokens, xOf, height + 14, marked);
  const base = line(EDGE, level(0), width, level(0), "thin");
  return drawing(width, height + LABELS, label, base, ...bars, ...extra(level), ...labels);
}

/** The share of the channels that forget at each token. */
export function forgetful(recorded, width) {
  const { forgets, resets, read } = recorded;
  const tokens = Array.from({ length: read + (width < 500 ? 2 : 14) }, (_, i) => i);
  const svg = columns(recorded, width, {
    tokens,
    values: tokens.map((token) => forgets[token]),
    height: 210,
    name: (token) => (resets.includes(token) ? "reset" : "usual"),
    label: `Share of channels that forget at each word; ${resets.length} are resets`,
    extra: (level) => [
      line(EDGE, level(0.25), width, level(0.25), "half"),
      text(EDGE - 6, level(0.25) + 4, "scale", "25%", { "text-anchor": "end" }),
      text(EDGE - 6, level(0) + 4, "scale", "0%", { "text-anchor": "end" }),
    ],
  });
  const keys = [
    box("span", "reset", "a reset"),
    box("span", "usual", "channels that lose more than half"),
    box("span", "", "columns without a word: where a turn begins or ends"),
  ];
  return [svg, box("div", "key", ...keys)];
}

/** The recorded answers with and without the word; changes are marked. */
export function answers(recorded) {
  const { texts, kinds, written, answers: both } = recorded;
  const question = texts.flatMap((piece, token) => {
    if (kinds[token] !== "prompt") return [];
    return [token === written ? box("del", "", piece) : piece];
  });
  const columns = ["Its answer", "Without “split”"].map((name, side) => {
    const parts = both[side].map(([piece, same]) =>
      same ? piece : box(side ? "ins" : "del", "", piece),
    );
    return box("div", "", box("h3", "", name), box("p", "reply", ...parts));
  });
  return [box("p", "question", ...question), box("div", "pair", ...columns)];
}

/** Both models' answers below the digits, and how much of the state each step keeps. */
export function lab({ lab: { inputs, right, reset, models } }) {
  const cells = inputs.map((input, token) => {
    const isReset = input === reset;
    const answers = models.map(({ answers, sizes }) => {
      const wrong = answers[token] !== right[token];
      const answer = box("span", wrong ? "answer wrong" : "answer", String(answers[token]));
      answer.style.setProperty("--kept", sizes[token]);
      answer.title = `${wrong ? `Right is ${right[token]}. ` : ""}Mean |a| ${sizes[token]}`;
      return answer;
    });
    const number = box("b", "", isReset ? "R" : String(input));
    return box("div", isReset ? "cell reset" : "cell", number, ...answers);
  });
  const keys = models.map(({ name, answers }, i) => {
    const wrong = answers.filter((answer, token) => answer !== right[token]).length;
    const row = i ? "Lower" : "Upper";
    return box("span", "", `${row} answers: ${name} a, ${wrong} of ${answers.length} wrong`);
  });
  const picture = box("div", "lab", ...cells);
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", keys.map((key) => key.textContent).join("; "));
  const bars = box("span", "", "Bars: |a|, what each step keeps of the state");
  return [picture, box("div", "key", ...keys, bars)];
}
