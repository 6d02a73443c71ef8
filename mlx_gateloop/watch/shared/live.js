import { bytes, halfLives, showData } from "./data.js";
import { percent, quoted } from "./plain.js";
import { View } from "./view.js";

const ROWS = 96; // in a layer's picture

/** What the worker has shown of a text, as `recording` returns it. */
class Live {
  constructor(rates) {
    Object.assign(this, { texts: [], kinds: [], shares: [], columns: [], layers: [] });
    this.halfLife = halfLives(rates);
  }

  add({ texts, kinds, start, layers, shares }) {
    Object.assign(this, { texts, kinds });
    this.shares = [...this.shares.slice(0, start), ...shares];
    this.columns = layers.map((added, i) => [...(this.columns[i] ?? []).slice(0, start), ...added]);
    this.layers = this.columns.map(asRows);
  }

  strength(m, n) {
    return m > n ? 0 : Math.sqrt(this.shares[n][m] / (Math.max(...this.shares[n]) || 1));
  }
}

/** The codes of a layer in rows of similar channels, as in sharing.py. @param {Uint8Array[]} columns */
function asRows(columns) {
  const channels = columns[0].length;
  const sumOf = (channel) => columns.reduce((sum, column) => sum + column[channel], 0);
  const sums = Array.from({ length: channels }, (_, i) => sumOf(i));
  const order = sums.map((_, i) => i).sort((a, b) => sums[a] - sums[b] || a - b);
  const rows = Math.min(ROWS, channels);
  const starts = Array.from({ length: rows + 1 }, (_, i) => Math.round((i * channels) / rows));
  const codes = new Uint8Array(columns.length * rows);
  columns.forEach((column, token) => {
    for (let row = 0; row < rows; row++) {
      const group = order.slice(starts[row], starts[row + 1]);
      const sum = group.reduce((total, channel) => total + column[channel], 0);
      codes[token * rows + row] = Math.round(sum / group.length);
    }
  });
  return { kind: "gateloop", rows, codes };
}

/** The places at which two lists differ: those outside their longest common subsequence. */
export function differing(before, after) {
  const common = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i--)
    for (let j = after.length - 1; j >= 0; j--)
      common[i][j] =
        before[i] === after[j]
          ? common[i + 1][j + 1] + 1
          : Math.max(common[i + 1][j], common[i][j + 1]);
  const [gone, added] = [[], []];
  let [i, j] = [0, 0];
  while (i < before.length || j < after.length) {
    if (before[i] === after[j]) [i, j] = [i + 1, j + 1];
    else if (i === before.length || common[i][j + 1] > common[i + 1][j]) added.push(j++);
    else gone.push(i++);
  }
  return { gone, added };
}

/** The tokens of the word around a token: up to spaces and changes of kind. */
export function wordAround(token, { texts, kinds }) {
  const begins = (m) =>
    m === 0 || kinds[m] !== kinds[m - 1] || /^\s/.test(texts[m]) || /\s$/.test(texts[m - 1]);
  const all = [...texts.keys()];
  const first = all.findLast((m) => m <= token && begins(m));
  const next = all.find((m) => m > token && begins(m));
  return all.slice(first, next);
}

/** Calls to the worker, answered in order. */
class Writing {
  constructor(script) {
    this.worker = new Worker(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
    this.waiting = []; // calls without an answer
    this.worker.onmessage = ({ data: { shown, value, error } }) => {
      const { show, resolve, reject } = this.waiting[0];
      if (shown) return show(shown);
      this.waiting.shift();
      if (error) reject(new Error(error));
      else resolve(value);
    };
    this.worker.onerror = ({ message }) => this.fail(new Error(message || "No worker starts"));
  }

  /** End the worker: calls without an answer fail, and all later ones. */
  fail(error) {
    this.failed = error;
    this.worker.terminate();
    for (const { reject } of this.waiting.splice(0)) reject(error);
  }

  call(call, options, show) {
    if (this.failed) return Promise.reject(this.failed);
    this.worker.postMessage({ call, options });
    return new Promise((resolve, reject) => this.waiting.push({ show, resolve, reject }));
  }

  stop() {
    this.stopped = true; // also if the worker has ended the call by now
    this.worker.postMessage({ call: "stop" });
  }
}

/** The form, the view, and the answer without a word. */
class Page {
  constructor(page, { config, tokenizer, chat, stops, rates }) {
    this.view = new View(page);
    this.find = this.view.find;
    this.rates = rates;
    this.live = new Live(rates);
    this.writing = new Writing(document.querySelector("#worker").textContent);
    const weights = bytes(document.querySelector("#weights").textContent);
    const parts = { weights, config, tokenizer, page: { chat, stops, rates } };
    this.writing.call("load", parts).catch((error) => {
      this.writing.fail(error);
      this.find("tip").textContent = error.message;
    });
    this.#listen();
    this.#setBusy(false);
    if (window === window.top) this.find("prompt").focus();
  }

  generate(prompt, { maxTokens = 200, temperature = 0, seed = 0 } = {}) {
    return this.writing.call("generate", { prompt, maxTokens, temperature, seed });
  }

  #listen() {
    const prompt = this.find("prompt");
    const send = () => {
      if (!this.busy && prompt.value.trim()) this.#guarded(() => this.#say(prompt.value));
    };
    prompt.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.writing.stop();
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      send();
    });
    this.find("send").addEventListener("click", send);
    this.find("stop").addEventListener("click", () => this.writing.stop());
    this.find("new").addEventListener("click", () => this.#guarded(() => this.#clear()));
    this.find("wipe").addEventListener("click", () => this.#guarded(() => this.#wipe()));
    this.view.moved = () => {
      this.#name();
      this.#guess();
    };
  }

  /** Run one thing at a time; show why it failed. */
  async #guarded(action) {
    this.#setBusy(true);
    this.writing.stopped = false;
    try {
      await action();
    } catch (error) {
      this.find("tip").textContent = error.message;
    } finally {
      this.#setBusy(false);
      this.find("prompt").focus();
    }
  }

  #setBusy(busy) {
    this.busy = busy;
    for (const name of ["send", "new", "wipe"]) this.find(name).disabled = busy;
    this.find("stop").disabled = !busy;
    if (busy) return;
    this.#name();
    this.#guess();
  }

  /** Name the word at the chosen token on the button that wipes it. */
  #name() {
    const { live, view } = this;
    const fits = live.kinds[view.token] === "prompt";
    this.word = fits ? wordAround(view.token, live) : [];
    const word = this.word.map((token) => live.texts[token]).join("");
    this.find("wipe").disabled = this.busy || !fits;
    this.find("wipe").textContent = fits
      ? `Forget ${quoted(word.trim() || word)}`
      : "Forget a word of yours: click it";
  }

  /** Show the next token that each block would predict at the chosen token. */
  async #guess() {
    const [at, element] = [this.view.token, this.find("guesses")];
    element.hidden = this.busy || !(at >= 0); // there is no text yet
    if (element.hidden) return;
    const guesses = await this.writing.call("guesses", { at });
    const named = guesses.map(([text, probability], block) => {
      const name = block ? `block ${block}` : "embedding";
      return `${name} ${quoted(text)} ${percent(probability)}`;
    });
    if (at === this.view.token) element.textContent = `Next, by the ${named.join(", ")}.`;
  }

  async #say(text) {
    this.find("prompt").value = "";
    this.find("forget").hidden = true;
    const number = (name) => Math.max(0, this.find(name).valueAsNumber || 0);
    const [temperature, seed] = ["temperature", "seed"].map(number);
    let read = false;
    const show = (shown) => {
      read = true;
      this.live.add(shown);
      this.view.show(this.live);
    };
    try {
      await this.writing.call("say", { prompt: text, temperature, seed }, show);
    } finally {
      if (!read) this.find("prompt").value = text;
    }
  }

  async #clear() {
    await this.writing.call("clear");
    this.live = new Live(this.rates);
    this.find("forget").hidden = true;
    this.view.clear();
  }

  /** Write the last answer again without a word, beside the first one. */
  async #wipe() {
    const positions = this.word;
    const { original, answer } = await this.writing.call("without", { positions });
    if (this.writing.stopped) return; // the answer may not be whole
    this.find("forget").hidden = false;
    this.view.forget({ left_out: positions, answer, ...differing(original, answer) });
  }
}

showData((page, data) => {
  window.gateloop = new Page(page, data);
});
