/** A GateLoop language model, one token at a time; the same as standalone.py. */

/** Read a file of safetensors; quantized matrices become floats. @param {Uint8Array} bytes */
export function tensors(bytes) {
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  const read = (name) => {
    const { dtype, data_offsets } = header[name];
    const [start, end] = data_offsets.map((offset) => 8 + length + offset);
    const part = bytes.slice(start, end).buffer;
    return dtype === "U32" ? new Uint8Array(part) : new Float32Array(part);
  };
  const found = {};
  for (const name of Object.keys(header)) {
    const base = name.replace(/weight$/, "");
    if (/\.(scales|biases)$/.test(name) || name === "__metadata__") continue;
    const quantized = base !== name && `${base}scales` in header;
    const groups = quantized ? [`${base}scales`, `${base}biases`] : [];
    found[name] = dequantized(...[name, ...groups].map(read));
  }
  return found;
}

/** Numbers of 8 bits, with a scale and an offset for each group; floats stay as they are. */
function dequantized(codes, scales, biases) {
  if (!scales) return codes;
  const group = codes.length / scales.length;
  const floats = new Float32Array(codes.length);
  for (let i = 0; i < codes.length; i++) {
    const at = Math.floor(i / group);
    floats[i] = Math.fround(codes[i] * scales[at]) + biases[at];
  }
  return floats;
}

/** weight x + bias, of `[outputs, inputs]`; four rows at once, three times as fast as one. */
function linear(weight, bias, input) {
  const x = Float64Array.from(input);
  const inputs = x.length;
  const y = new Float32Array(weight.length / inputs);
  for (let next = 0; next < y.length; next += 4) {
    const row = Math.max(0, Math.min(next, y.length - 4)); // the last four may overlap
    let [a, b, c, d] = [0, 0, 0, 0];
    const [first, second, third, fourth] = [0, 1, 2, 3].map((more) => (row + more) * inputs);
    for (let i = 0; i < inputs; i++) {
      a += weight[first + i] * x[i];
      b += weight[second + i] * x[i];
      c += weight[third + i] * x[i];
      d += weight[fourth + i] * x[i];
    }
    [y[row], y[row + 1], y[row + 2], y[row + 3]] = [a, b, c, d];
  }
  return bias ? y.map((value, i) => value + bias[i]) : y;
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const silu = (x) => x * sigmoid(x);

/** x times the normal distribution function, by the error function's series 7.1.26 (1.5e-7). */
function gelu(x) {
  const t = 1 / (1 + (0.3275911 * Math.abs(x)) / Math.SQRT2);
  const series =
    ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  const erf = 1 - series * Math.exp((-x * x) / 2);
  return 0.5 * x * (1 + Math.sign(x) * erf);
}

/** The model; a state belongs to one text. */
export class Model {
  /** @param {object} config As in config.json. @param {Record<string, Float32Array>} weights */
  constructor(config, weights) {
    Object.assign(this, { config, weights });
    this.width = config.hidden_size;
    this.heads = config.num_heads ?? this.width;
    this.size = this.width / this.heads; // channels of a head
  }

  /** An empty state. */
  start() {
    const zeros = () => new Float64Array(this.width * this.size);
    const layer = () => ({ re: zeros(), im: zeros(), inputs: [] });
    return Array.from({ length: this.config.num_hidden_layers }, layer);
  }

  /** Read a token: change the state, tell a `Memory`, and return the stream after all blocks. */
  step(token, state, memory) {
    const { config, weights, width } = this;
    let x = weights["model.embed_tokens.weight"].slice(token * width, (token + 1) * width);
    const added = (y) => x.map((value, i) => value + y[i]);
    state.forEach((layer, number) => {
      const name = `model.layers.${number}`;
      const mixing = (input) => this.#mixed(`${name}.time_mixing`, input, layer, number, memory);
      const channels = (input) => this.#channels(`${name}.channel_mixing`, input);
      memory?.passed(number, x);
      const norm = (part, input) => this.#normed(`${name}.${part}_norm`, input);
      if (config.norm_position === "post") {
        x = norm("time", added(mixing(x)));
        x = norm("channel", added(channels(x)));
      } else {
        x = added(mixing(norm("time", x)));
        x = added(channels(norm("channel", x)));
      }
    });
    memory?.passed(state.length, x);
    return x;
  }

  /** Scores of the next token. @param {Float32Array} stream After the last block, or a block. */
  logits(stream) {
    const x = this.config.final_norm ? this.#normed("model.norm", stream) : stream;
    if (this.config.tie_word_embeddings)
      return linear(this.weights["model.embed_tokens.weight"], null, x);
    return this.#linear("lm_head", x);
  }

  #linear(name, x) {
    return linear(this.weights[`${name}.weight`], this.weights[`${name}.bias`], x);
  }

  #channels(name, x) {
    return this.#linear(`${name}.down_proj`, this.#linear(`${name}.up_proj`, x).map(gelu));
  }

  #normed(name, x) {
    const { norm, layer_norm_eps } = this.config;
    if (norm === "none") return x;
    const weight = this.weights[`${name}.weight`];
    const bias = this.weights[`${name}.bias`];
    const mean = norm === "layer" ? x.reduce((sum, value) => sum + value, 0) / x.length : 0;
    const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
    const scale = 1 / Math.sqrt(variance + (norm === "layer" ? layer_norm_eps : 1e-24 / x.length));
    return x.map((value, i) => (value - mean) * scale * weight[i] + (bias ? bias[i] : 0));
  }

  /** A convolution over the last tokens, which the state of the layer holds. */
  #convolved(name, x, { inputs }) {
    const weight = this.weights[`${name}.conv1d.weight`];
    if (!weight) return x;
    const size = this.config.conv_size;
    inputs.unshift(x);
    inputs.splice(size);
    const tap = (i, ago) => weight[(i + 1) * size - 1 - ago] * inputs[ago][i];
    return x.map((_, i) => inputs.reduce((sum, _, ago) => sum + tap(i, ago), 0));
  }

  #mixed(name, input, state, number, memory) {
    const { config, weights, width, size } = this;
    const x = this.#convolved(name, input, state);
    const part = (kind) => this.#linear(`${name}.${kind}_proj`, x);
    const transition = (kind) => weights[`${name}.${kind}`] ?? part(kind);
    const [query, key, value] = ["q", "k", "v"].map(part);
    const gamma = Float64Array.from(transition("gamma"));
    const theta = config.gate === "real" ? null : Float64Array.from(transition("theta"));
    if (config.gate === "polar_abs")
      gamma.forEach((re, i) => {
        [gamma[i], theta[i]] = [Math.hypot(re, theta[i]), Math.atan2(theta[i], re)];
      });
    const y = new Float32Array(width);
    const rates = new Float64Array(width);
    const written = new Float64Array(width);
    for (let i = 0; i < width; i++) {
      const magnitude = sigmoid(gamma[i]);
      const [re, im] = theta
        ? [magnitude * Math.cos(theta[i]), magnitude * Math.sin(theta[i])]
        : [magnitude, 0];
      const write =
        key[i] * (config.input_scale ? Math.sqrt(sigmoid(-gamma[i]) * (1 + magnitude)) : 1);
      const head = i - (i % size);
      for (let j = 0, at = i * size; j < size; j++, at++) {
        const before = state.re[at];
        state.re[at] = re * before - im * state.im[at] + write * value[head + j];
        state.im[at] = im * before + re * state.im[at];
        y[head + j] += query[i] * state.re[at];
        written[i] += (write * value[head + j]) ** 2;
      }
      rates[i] = Math.max(-gamma[i], 0) + Math.log1p(Math.exp(-Math.abs(gamma[i])));
    }
    memory?.kept(number, rates, written);
    if (config.output_gate)
      part("gate").forEach((gate, i) => {
        y[i] *= silu(gate);
      });
    return (config.output_projection ?? config.output_gate)
      ? this.#linear(`${name}.out_proj`, y)
      : y;
  }
}

/** What a text's tokens leave in the state: shares as `Trace.retention`, and decays in 8 bits. */
export class Memory {
  /** @param {Model} model @param {[number, number]} rates What the codes 0 and 255 stand for. */
  constructor(model, [low, high]) {
    const layers = model.config.num_hidden_layers;
    const scale = 255 / Math.log(high / low);
    this.coded = (rate) => Math.round(scale * Math.log(Math.min(high, Math.max(low, rate)) / low));
    this.layers = Array.from({ length: layers }, () => ({ left: [], codes: [] }));
    this.streams = Array.from({ length: layers + 1 }, () => []); // before each block, and at the end
  }

  /** @param {Float64Array} rates -log|a| of channels. @param {Float64Array} written Squares. */
  kept(number, rates, written) {
    const { left, codes } = this.layers[number];
    const kept = rates.map((rate) => Math.exp(-2 * rate));
    for (const token of left) for (let i = 0; i < kept.length; i++) token[i] *= kept[i];
    left.push(written);
    codes.push(Uint8Array.from(rates, this.coded));
  }

  passed(number, stream) {
    this.streams[number].push(stream);
  }

  /** The share of each token in the state, the mean over layers. */
  shares() {
    const mean = new Float64Array(this.layers[0].left.length);
    for (const { left } of this.layers) {
      const squares = left.map((token) => token.reduce((sum, value) => sum + value, 0));
      const whole = Math.sqrt(squares.reduce((sum, value) => sum + value, 0)) || 1;
      squares.forEach((square, m) => {
        mean[m] += Math.sqrt(square) / whole / this.layers.length;
      });
    }
    return mean;
  }
}

/** Draw a token, at temperature 0 the likeliest. @param {() => number} random From 0 to 1. */
export function drawn(logits, temperature, random) {
  const most = logits.reduce((best, value, i) => (value > logits[best] ? i : best), 0);
  if (!temperature) return most;
  const weights = logits.map((value) => Math.exp((value - logits[most]) / temperature));
  let left = random() * weights.reduce((sum, value) => sum + value, 0);
  for (let token = 0; token < weights.length; token++) {
    left -= weights[token];
    if (left < 0) return token;
  }
  return most;
}

/** Marsaglia's xorshift of 32 bits, from a seed mixed as MurmurHash3 ends. @param {number} seed */
export function randomFrom(seed) {
  let state = seed ^ 0x9e3779b9;
  state = Math.imul(state ^ (state >>> 16), 0x85ebca6b);
  state = Math.imul(state ^ (state >>> 13), 0xc2b2ae35);
  state = state ^ (state >>> 16) || 1;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}
