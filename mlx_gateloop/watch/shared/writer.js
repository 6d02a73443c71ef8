import { drawn, Memory, randomFrom } from "./model.js";

export const MAX_TOKENS = 1000; // a text's; the strengths take a time that grows with its square

/** A text that a model reads and continues. */
export class Writer {
  /** The chat template's parts, or null, are before a text, after an answer and after a message. */
  constructor(model, tokenizer, page) {
    Object.assign(this, { model, tokenizer, page });
    this.ids = [];
    this.kinds = [];
    this.shares = []; // each token's share of the state after each later one
    this.state = model.start();
    this.memory = new Memory(model, page.rates);
  }

  /** Read what a user types, a message if the model chats. Yields after each token. */
  *say(text) {
    const { chat } = this.page;
    this.require(text.length / this.tokenizer.longest); // encoding it takes a time that is its square
    const prompt = this.tokenizer.encode(text);
    const around = chat ? [this.ids.length ? chat[1] : chat[0], chat[2]] : ["", ""];
    const [start, end] = around.map((part) => (part ? this.tokenizer.encode(part, true) : []));
    this.require(start.length + prompt.length + end.length); // before it reads a part
    yield* this.#read(start, "special");
    yield* this.#read(prompt, "prompt");
    yield* this.#read(end, "special");
  }

  /** Continue the text until it ends or has `maxTokens` more. Yields after each token. */
  *write({ temperature = 0, seed = 0, maxTokens = 200 }) {
    const random = randomFrom(seed);
    const most = Math.min(maxTokens, MAX_TOKENS - this.ids.length);
    for (let count = 0; count < most && this.output; count++) {
      const token = drawn(this.model.logits(this.output), temperature, random);
      if (this.page.stops.includes(token)) return;
      yield* this.#read([token], "answer");
    }
  }

  /** Throw unless so many more tokens fit. */
  require(count) {
    if (this.ids.length + count > MAX_TOKENS)
      throw new Error(`A text has at most ${MAX_TOKENS} tokens here; begin another one.`);
  }

  *#read(tokens, kind) {
    this.require(tokens.length);
    for (const token of tokens) {
      this.output = this.model.step(token, this.state, this.memory);
      this.ids.push(token);
      this.kinds.push(kind);
      this.shares.push(this.memory.shares());
      yield;
    }
  }

  /** Read the same tokens up to the last answer, without those at these positions. */
  *without(leftOut) {
    const end = 1 + Math.max(...["special", "prompt"].map((kind) => this.kinds.lastIndexOf(kind)));
    const other = new Writer(this.model, this.tokenizer, this.page);
    for (let m = 0; m < end; m++)
      if (!leftOut.includes(m)) yield* other.#read([this.ids[m]], this.kinds[m]);
    return other;
  }

  /** The likeliest token after one, by each block: `[text, probability]` from the embedding on. */
  guesses(at) {
    return this.memory.streams.map((stream) => {
      const logits = this.model.logits(stream[at]);
      const token = drawn(logits, 0);
      const odds = logits.reduce((sum, value) => sum + Math.exp(value - logits[token]), 0);
      return [this.tokenizer.decode([token])[0], 1 / odds];
    });
  }

  /** The text of each token. */
  get texts() {
    return this.tokenizer.decode(this.ids);
  }

  /** The last answer, or what was written so far of it. */
  get answer() {
    const asked = Math.max(this.kinds.lastIndexOf("special"), this.kinds.lastIndexOf("prompt"));
    return this.texts.slice(asked + 1);
  }

  /** What the view needs of the tokens from `start`. */
  since(start) {
    const layers = this.memory.layers.map(({ codes }) => codes.slice(start));
    const { kinds, shares } = this;
    return { texts: this.texts, kinds, start, layers, shares: shares.slice(start) };
  }
}
