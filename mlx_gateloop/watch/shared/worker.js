import { Model, tensors } from "./model.js";
import { Tokenizer } from "./tokenizer.js";
import { Writer } from "./writer.js";

const SHOW_MS = 40; // between two pictures
let parts, text, last, stopped;

/** Let messages in, such as Stop. */
const messages = new MessageChannel();
const pause = () =>
  new Promise((resolve) => {
    messages.port1.onmessage = resolve;
    messages.port2.postMessage(0);
  });

/** Run a generator; show the text from time to time. Returns its value, or undefined if stopped. */
async function run(steps, show) {
  let shown = 0;
  for (;;) {
    const { value, done } = steps.next();
    if (done) return value;
    await pause();
    if (stopped) return undefined;
    if (show && performance.now() - shown > SHOW_MS) {
      show();
      shown = performance.now();
    }
  }
}

const begin = () => new Writer(...parts);

const CALLS = {
  load({ weights, config, tokenizer, page }) {
    parts = [new Model(config, tensors(weights)), new Tokenizer(tokenizer), page];
    text = begin();
    for (const _ of text.say("The first steps are compiled, so they are slow.")); // not the user's
    for (const _ of text.write({ maxTokens: 8 }));
    text = begin();
  },
  clear() {
    text = begin();
  },
  async say({ prompt, ...options }, post) {
    let sent = 0;
    last = options;
    const show = () => {
      post(text.since(sent));
      sent = text.ids.length;
    };
    try {
      await run(text.say(prompt), show);
      if (!stopped) await run(text.write(options), show);
      text.require(1);
    } finally {
      if (sent < text.ids.length) show();
    }
  },
  async without({ positions }) {
    const other = await run(text.without(positions));
    if (other) await run(other.write(last));
    return { original: text.answer, answer: other?.answer };
  },
  guesses: ({ at }) => text.guesses(at),
  async generate({ prompt, ...options }) {
    const other = begin();
    await run(other.say(prompt));
    await run(other.write(options));
    return other.answer.join("");
  },
};

let queue = Promise.resolve();
self.onmessage = ({ data: { call, options } }) => {
  if (call === "stop") {
    stopped = true;
    return;
  }
  queue = queue.then(async () => {
    stopped = false;
    try {
      const value = await CALLS[call](options, (shown) => self.postMessage({ shown }));
      self.postMessage({ value });
    } catch (error) {
      self.postMessage({ error: error.message });
    }
  });
};
