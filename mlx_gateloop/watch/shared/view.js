import { gradient, MAGMA } from "./colours.js";
import { inTokens, plain, quoted, strong } from "./plain.js";
import { playing, STEP_MS } from "./play.js";

const DECADES = [0, 4]; // ends of the colour scale: log10 of half-lives in tokens
const FAINTEST = 0.16; // opacity of a forgotten word

/** A colour of the scale, `[red, green, blue]`. */
const colour = gradient(MAGMA);

/** Paint a canvas with one pixel per cell. */
function paint(canvas, width, height, share) {
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      image.data.set([...colour(share(x, y)), 255], 4 * (y * width + x));
  context.putImageData(image, 0, 0);
}

/** The index of the layer with the longest memory. @param {{codes: Uint8Array}[]} layers */
function slowest(layers) {
  const mean = (codes) => codes.reduce((sum, code) => sum + code, 0) / codes.length;
  const means = layers.map(({ codes }) => mean(codes));
  return means.indexOf(Math.min(...means));
}

/** Make an element of a token; model output is only ever set as textContent. */
function word(text, kind = "") {
  const span = document.createElement("span");
  span.textContent = plain(text);
  span.dataset.kind = kind;
  return span;
}

/** The words and columns of a page, and an answer beside one without some words. */
export class View {
  constructor(page) {
    this.find = (name) => page.querySelector(`.${name}`);
    paint(this.find("scale"), 256, 1, (x) => x / 255);
    this.#listen();
  }

  /** Show a recording, at its last token. */
  show(recorded) {
    this.recorded = recorded;
    this.last = recorded.texts.length - 1;
    this.words = recorded.texts.map((text, token) => {
      const span = word(text, recorded.kinds[token]);
      span.dataset.token = token;
      return span;
    });
    this.find("words").replaceChildren(...this.#turns());
    const layers = this.find("layer");
    if (layers.length !== recorded.layers.length) {
      const option = ({ kind }, layer) => new Option(`${layer + 1}, ${kind}`, layer);
      layers.replaceChildren(...recorded.layers.map(option));
      layers.selectedIndex = slowest(recorded.layers);
    }
    this.find("slider").max = this.last;
    this.find("play").disabled = this.last < 0;
    this.showLayer();
    this.goTo(this.last);
  }

  /** The words, with a line break before each turn. */
  #turns() {
    let before;
    return this.words.flatMap((span) => {
      const { kind } = span.dataset;
      if (kind === "special") return [span];
      const begins = before !== undefined && before !== kind;
      before = kind;
      return begins ? [document.createElement("br"), span] : [span];
    });
  }

  #listen() {
    const names = ["columns", "words", "layer", "slider", "play"];
    const [columns, words, layer, slider, play] = names.map(this.find);
    const of = (event) => event.target.dataset?.token;
    words.addEventListener("pointerover", (event) => of(event) && this.point(+of(event)));
    words.addEventListener("click", (event) => of(event) && this.goTo(+of(event)));
    words.addEventListener("pointerleave", () => this.point());
    columns.addEventListener("pointermove", (event) => this.point(...this.#cell(event)));
    columns.addEventListener("click", (event) => this.goTo(this.#cell(event)[0]));
    columns.addEventListener("pointerleave", () => this.point());
    layer.addEventListener("change", () => this.showLayer());
    slider.addEventListener("input", () => this.goTo(slider.valueAsNumber));
    playing(play, slider, (token) => this.goTo(token));
  }

  /** The token and the row under the pointer. @param {PointerEvent} event */
  #cell(event) {
    const box = event.currentTarget.getBoundingClientRect();
    const { width, height } = event.currentTarget;
    const at = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
    return [
      at((event.clientX - box.left) / box.width, width),
      at((event.clientY - box.top) / box.height, height),
    ];
  }

  /** Paint the chosen layer, slow channels on top. */
  showLayer() {
    this.layer = this.recorded.layers[this.find("layer").selectedIndex];
    this.find("picture").hidden = !this.layer;
    if (!this.layer) return;
    const { rows, codes } = this.layer;
    paint(this.find("columns"), this.last + 1, rows, (token, row) => {
      const decades = Math.log10(this.recorded.halfLife(codes[token * rows + row]));
      return (decades - DECADES[0]) / (DECADES[1] - DECADES[0]);
    });
  }

  /** Show the memory after this token. @param {number} token */
  goTo(token) {
    this.token = token;
    this.find("slider").value = token;
    this.words.forEach((span, m) => {
      const strength = this.recorded.strength(m, token);
      span.classList.toggle("later", m > token);
      span.classList.toggle("unknown", strength === undefined);
      span.classList.toggle("marked", m === token);
      span.style.opacity = FAINTEST + (1 - FAINTEST) * (strength ?? 1);
    });
    this.#put("mark", token);
    this.point();
    this.moved?.();
  }

  /** Show nothing. */
  clear() {
    this.show({ texts: [], kinds: [], layers: [], strength: () => 0 });
  }

  #put(name, token) {
    const line = this.find(name);
    line.hidden = token === undefined;
    if (line.hidden) return;
    line.style.left = `${(100 * token) / (this.last + 1)}%`;
    line.style.width = `${100 / (this.last + 1)}%`;
  }

  /** Point at a token, and at a row of its column. @param {number} [token] @param {number} [row] */
  point(token, row) {
    this.pointed?.classList.remove("pointed");
    this.pointed = this.words[token];
    this.pointed?.classList.add("pointed");
    this.#put("here", token);
    this.find("tip").textContent = token === undefined ? this.#where() : this.#describe(token, row);
  }

  #where() {
    if (this.last < 0) return "";
    return `The memory after ${quoted(this.recorded.texts[this.token])}, token ${this.token}.`;
  }

  #describe(token, row) {
    const strength = this.recorded.strength(token, this.token);
    const name = `${quoted(this.recorded.texts[token])}, token ${token}`;
    const left = strong(strength === undefined ? null : strength ** 2);
    const line = token > this.token ? `${name}, comes later.` : `${name}: ${left}.`;
    if (row === undefined) return line;
    const { rows, codes } = this.layer;
    const half = inTokens(this.recorded.halfLife(codes[token * rows + row]));
    return `${line} Here these channels lose half in ${half}.`;
  }

  /** Add buttons for recorded answers without some words. */
  offer(forgotten) {
    this.find("forget").hidden = !forgotten.length;
    const buttons = forgotten.map(({ left_out }) => {
      const button = document.createElement("button");
      button.type = "button";
      const word = left_out.map((token) => this.recorded.texts[token]).join("");
      button.textContent = word ? quoted(word) : "A word that is not shown";
      return button;
    });
    buttons.forEach((button, i) => {
      button.addEventListener("click", () => {
        for (const other of buttons) other.setAttribute("aria-pressed", other === button);
        this.forget(forgotten[i]);
      });
    });
    this.find("choices").append(...buttons);
    if (forgotten.length) {
      buttons[0].setAttribute("aria-pressed", "true");
      this.forget(forgotten[0], true);
    }
  }

  /** Play an answer beside the one without some words. */
  forget({ left_out, gone, answer, added }, atOnce = false) {
    const { texts, kinds } = this.recorded;
    const asked = kinds.lastIndexOf("prompt"); // before the last answer
    const original = texts.filter((_, token) => token > asked && kinds[token] === "answer");
    this.words.forEach((span, token) => {
      span.classList.toggle("forgotten", left_out.includes(token));
    });
    const spans = [
      original.map((text, i) => word(text, gone.includes(i) ? "gone" : "")),
      answer.map((text, i) => word(text, added.includes(i) ? "added" : "")),
    ];
    this.find("original").replaceChildren(...spans[0]);
    this.find("without").replaceChildren(...spans[1]);
    clearInterval(this.forgetting);
    if (atOnce || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    for (const span of spans.flat()) span.classList.add("waiting");
    let shown = 0;
    this.forgetting = setInterval(() => {
      for (const side of spans) side[shown]?.classList.remove("waiting");
      shown += 1;
      if (spans.every((side) => shown >= side.length)) clearInterval(this.forgetting);
    }, STEP_MS);
  }
}
