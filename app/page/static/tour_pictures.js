import { percent } from "../../../mlx_gateloop/watch/shared/plain.js";
import {
  arrow,
  axis,
  box,
  complex,
  decimals,
  degrees,
  drawing,
  left,
  line,
  shape,
  shares,
  size,
  text,
  times,
  word,
} from "./tour_drawing.js";

const LABELS = 54; // pixels for rotated words below columns
const EDGE = 40; // pixels for the scale left of a picture
const AFTER = 3; // tokens after the one that reads

/** One update at a word that the user chooses. */
export function update(recorded, width) {
  const { channel, kinds, read, written } = recorded;
  const tokens = kinds.flatMap((kind, token) =>
    kind === "special" || token > read + 1 ? [] : [token],
  );
  const words = tokens.map((token) => box("span", "word", word(recorded, token)));
  const slider = box("input", "which");
  const { length } = tokens;
  Object.assign(slider, { type: "range", min: 0, max: length - 1, value: tokens.indexOf(written) });
  const shown = box("div", "update");
  const show = () => {
    const token = tokens[slider.valueAsNumber];
    words.forEach((span, i) => {
      span.classList.toggle("marked", tokens[i] === token);
    });
    slider.setAttribute("aria-label", `Word: ${word(recorded, token)}`);
    shown.replaceChildren(...updated(channel, token, width < 500 ? 150 : 240));
  };
  words.forEach((span, i) => {
    span.onclick = () => {
      slider.value = i;
      show();
    };
  });
  slider.oninput = show;
  show();
  return [box("div", "words", ...words), slider, shown];
}

/** The arrows and the numbers of an update. */
function updated({ layer, channel, a, k, v, h }, token, side) {
  const before = token ? h[token - 1] : [0, 0];
  const kept = times(a[token], before);
  const wrote = k[token] * v[token];
  const scale = (0.44 * side) / Math.max(size(before), size(kept), size(h[token]), Math.abs(wrote));
  const [middle, at] = [side / 2, ([re, im]) => [re * scale, -im * scale]];
  const [tipX, tipY] = at(kept);
  const arrows = drawing(
    side,
    side,
    "Arrows: the old number, what remains of it, what the word adds, and the new number",
    shape("circle", { cx: middle, cy: middle, r: middle - 1, class: "ground" }),
    line(0, middle, side, middle, "thin"),
    line(middle, 0, middle, side, "thin"),
    arrow(middle, middle, ...at(before), "before"),
    arrow(middle, middle, ...at(h[token]), "after"),
    arrow(middle, middle, tipX, tipY, "kept"),
    arrow(middle + tipX, middle + tipY, wrote * scale, 0, "wrote"),
  );
  const stays = `keeps ${percent(size(a[token]))}, turns ${decimals(degrees(a[token]), 0)}°`;
  const product = `${decimals(k[token], 3)} · ${decimals(v[token], 3)} = ${decimals(wrote)}`;
  const rows = [
    ["before", "h before", complex(before)],
    ["a", "a", complex(a[token], 4), stays],
    ["kept", "a h", complex(kept)],
    ["wrote", "k v", product],
    ["after", "h = a h + k v", complex(h[token])],
  ].map(([name, term, value, more]) => {
    const number = box("dd", "", value, ...(more ? [box("small", "", more)] : []));
    return box("div", name, box("dt", "", term), number);
  });
  const where = `Layer ${layer + 1} of the model, channel ${channel}`;
  return [arrows, box("div", "", box("dl", "", ...rows), box("p", "note", where))];
}

/** The share of a word that remains in three channels, by word. */
export function curves(recorded, width) {
  const { channel, others, read, written } = recorded;
  const end = read + AFTER;
  const [height, top] = [210, 8];
  const place = (token) => EDGE + ((width - EDGE - 16) * (token - written)) / (end - written);
  const level = (share) => top + (height - top) * (1 - share);
  const sizes = [others[0], channel.a.map(size), others[1]];
  const names = ["kept", "after", "wrote"];
  const tokens = Array.from({ length: end - written + 1 }, (_, i) => written + i);
  const halves = [];
  const paths = sizes.map((each, i) => {
    const kept = shares(each, written, each.length - 1);
    halves.push(kept.findIndex((share) => share < 0.5));
    const points = tokens.map((token, n) => `${place(token)},${level(kept[n])}`).join(" ");
    return shape("polyline", { points, class: `curve ${names[i]}` });
  });
  const scale = [0, 0.5, 1].flatMap((share) => [
    line(EDGE, level(share), width - 16, level(share), share === 0.5 ? "half" : "thin"),
    text(EDGE - 6, level(share) + 4, "scale", `${100 * share}%`, { "text-anchor": "end" }),
  ]);
  const labels = axis(recorded, tokens, (token) => place(token) + 3, height + 14, written);
  const about = "What remains of the word split in three channels";
  const svg = drawing(width, height + LABELS, about, ...scale, ...paths, ...labels);
  const keys = ["a short memory", "the channel of step 1", "a long memory"].map((name, i) =>
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
    const place = { x: EDGE + i * each + 1, width: Math.max(each - 2, 1) };
    const bar = shape("rect", { ...place, y, height: base - y, class: name(tokens[i]) });
    bar.append(shape("title", {}, `${word(recorded, tokens[i])} ${decimals(value)}`));
    return bar;
  });
  const place = (token) => EDGE + (tokens.indexOf(token) + 0.5) * each + 4;
  const labels = axis(recorded, tokens, place, height + 14, marked);
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

/** A word in a channel: it turns and fades with each token. */
export function dials(recorded, width) {
  const { channel, written, read } = recorded;
  const side = Math.floor(Math.min(104, width / 4 - 10));
  const middle = side / 2;
  let since = [1, 0];
  const all = [];
  for (let token = written; token <= read + 1; token++) {
    if (token > written) since = times(since, channel.a[token]);
    const [re, im] = since.map((x) => x * (middle - 4));
    const turned = `${decimals(degrees(since), 0)}°`;
    const dial = drawing(
      side,
      side,
      `${word(recorded, token)}: ${percent(size(since))} left, turned by ${turned}`,
      shape("circle", { cx: middle, cy: middle, r: middle - 2, class: "ground" }),
      line(middle, middle, side - 2, middle, "thin"),
      arrow(middle, middle, re, -im, "after"),
    );
    if (recorded.kinds[token] !== "special")
      all.push(
        box("figure", "", dial, box("figcaption", "", box("b", "", word(recorded, token)), turned)),
      );
  }
  return [box("div", "dials", ...all)];
}

/** The contribution of each word to one channel's output. */
export function read(recorded, width) {
  const { channel, read: end, written } = recorded;
  const tokens = Array.from({ length: end }, (_, i) => i + 1);
  const parts = left(channel, end).map(([re]) => re * channel.q[end]);
  const sum = parts.reduce((a, b) => a + b);
  const svg = columns(recorded, width, {
    tokens,
    values: tokens.map((token) => parts[token]),
    height: 210,
    name: (token) => (token === written ? "after" : "usual"),
    label: `What each word adds to y: ${decimals(parts[written])} of ${decimals(sum)} is split`,
    marked: written,
    extra: (level) => [
      text(EDGE - 6, level(0) + 4, "scale", "0", { "text-anchor": "end" }),
      text(EDGE - 6, level(parts[written]) + 4, "scale", decimals(parts[written], 1), {
        "text-anchor": "end",
      }),
    ],
  });
  const note = `All columns add up to y = ${decimals(sum)}`;
  return [svg, box("div", "key", box("span", "after", "split"), box("span", "", note))];
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
