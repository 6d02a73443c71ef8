import { quoted, strong } from "../../../mlx_gateloop/watch/shared/plain.js";
import { Again, NO_REPLY } from "./again.js";
import { ChatText } from "./chat_text.js";
import { likelihood, strongest } from "./dependence.js";
import { level, paint } from "./paint.js";
import { textOf, word } from "./word_list.js";
import { listen } from "./word_listeners.js";

const INTERVAL_MS = 150; // between requests
const MAX_PAUSE_MS = 4000; // the last pause without an answer
const OFFER = "Click a word, or select some: what it depended on, and the answer without it.";

/** The words of the chat, as strong as what is left of them in the state; and what to do with them. */
export class ChatWords {
  /**
   * @param {HTMLElement} element The section of chat_words.html.
   * @param {{value: {run?: string, hint?: string} | null}} props The run that is shown, or why
   *     there is none.
   * @param {Record<string, (request: unknown[]) => Promise<any>>} server Functions of chat_words.py.
   */
  constructor(element, props, server) {
    Object.assign(this, { element, props, server });
    this.text = new ChatText(document.querySelector("#chat"));
    this.again = new Again(this.find("#words-result"), server);
    /** @type {import("./word_list.js").Word[]} */
    this.words = [];
    this.polls = 0; // the last one's number; the others have ended
    listen(this);
    this.#clear();
    this.start();
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  get run() {
    return this.props.value?.run ?? null;
  }

  #clear() {
    this.latest = this.codes = new Uint8Array();
    this.answer = -1; // its message
    this.done = false;
    this.close();
  }

  // ---- the run ----
  /** Follow the run in `props.value`, or say why there is none. */
  start() {
    if (this.run && this.run === this.followed) return;
    const earlier = { run: this.followed, words: this.words };
    this.again.close();
    this.followed = this.run;
    this.words = [];
    this.polls++;
    this.#clear();
    if (this.run) this.#poll(this.polls, earlier);
  }

  async #poll(number, earlier) {
    const { run } = this;
    const common = earlier.run ? await this.server.shared([run, earlier.run]).catch(() => 0) : 0;
    if (number !== this.polls) return;
    this.words = earlier.words.filter(({ stop }) => stop < common);
    for (let silent = INTERVAL_MS; silent <= MAX_PAUSE_MS && !this.done; ) {
      const began = performance.now();
      const answer = await this.server.words([run, this.words.length, -1]).catch(() => null);
      if (number !== this.polls) return;
      if (answer) this.#add(answer);
      silent = answer ? INTERVAL_MS : 1.5 * silent; // a busy server gives none for a while
      const pause = Math.max(silent, 2 * (performance.now() - began)); // a long text takes it longer
      if (!this.done) await new Promise((wake) => setTimeout(wake, pause));
    }
  }

  #add({ start, words, strengths, answer, done }) {
    this.words.splice(start, this.words.length, ...words.map(word));
    this.latest = Uint8Array.from(atob(strengths), (code) => code.charCodeAt(0));
    Object.assign(this, { answer, done });
    if (this.choice === null) this.codes = this.latest;
    if (done && this.choice === null) this.say(OFFER);
    this.paint();
  }

  // ---- painting ----
  paint() {
    const { words, losses, choice } = this;
    const fades = this.find("#words-fade input").checked && !losses;
    paint("fade", this.#ranges(fades ? words.map((_, n) => this.#faded(n)) : []));
    const lost = new Array(words.length).fill(0);
    for (const [i, [first, stop]] of (losses?.units ?? []).entries())
      lost.fill(losses.losses[i] / losses.most, first, stop);
    paint("lost", this.#ranges(lost.map((share) => level(share) || undefined)));
    paint("gained", this.#ranges(lost.map((share) => level(-share) || undefined)));
    const { forgotten } = this.again;
    const struck = words.map((_, n) =>
      n >= forgotten?.first && n < forgotten?.stop ? 0 : undefined,
    );
    paint("forgotten", this.#ranges(struck));
    const inside = words.map((_, n) =>
      choice && n >= choice.first && n < choice.stop ? 0 : undefined,
    );
    paint("chosen", this.#ranges(inside));
  }

  /** The level of a word, if it is to be faint. */
  #faded(n) {
    if (n >= this.codes.length) return this.choice ? "later" : undefined;
    const found = this.codes[n] ? level((this.codes[n] - 1) / 254) : 9;
    return found < 9 ? found : undefined;
  }

  /** Ranges by level, of the levels of all words; words that follow one another share one. */
  #ranges(levels) {
    const found = new Map();
    for (let first = 0; first < levels.length; first++) {
      const of = levels[first];
      if (of === undefined || !this.text.shows(this.words[first])) continue;
      const { message } = this.words[first];
      const goes = (n) =>
        levels[n] === of && this.words[n].message === message && this.text.shows(this.words[n]);
      let last = first;
      while (last + 1 < levels.length && goes(last + 1)) last++;
      const range = this.text.range(this.words[first], this.words[last]);
      if (!found.has(of)) found.set(of, []);
      found.get(of).push(range);
      first = last;
    }
    return found;
  }

  // ---- the choice ----
  /** Choose words. @param {import("./word_list.js").Choice | null} choice */
  choose(choice) {
    if (!choice) return this.close();
    if (!this.done) return this.say("Wait for the end of the answer, then choose a word.");
    const { words, answer } = this;
    const name = quoted(textOf(words, choice));
    const single = choice.stop - choice.first === 1;
    Object.assign(this, { choice, name, losses: null });
    this.find(".key").hidden = true;
    this.find("#words-bar").hidden = false;
    this.find(".chosen").textContent = name;
    this.find("#words-forget").disabled = words[choice.stop - 1].message >= answer;
    this.find("#words-depends").disabled = !single || choice.first === 0;
    this.say(`How strong each word was when ${name} was read.`);
    this.#look(choice.stop - 1);
    this.paint();
  }

  /** Choose nothing: the words are as strong as they are now. */
  close() {
    this.choice = this.losses = null;
    this.codes = this.latest;
    this.find(".key").hidden = false;
    this.find("#words-bar").hidden = true;
    this.say(this.done ? OFFER : (this.props.value?.hint ?? ""));
    this.paint();
  }

  /** Show the strengths when a word was read. @param {number} at */
  async #look(at) {
    const { run, choice } = this;
    const answer = await this.server.words([run, this.words.length, at]).catch(() => null);
    if (answer?.at !== at || run !== this.run || choice !== this.choice) return;
    this.codes = Uint8Array.from(atob(answer.strengths), (code) => code.charCodeAt(0));
    this.paint();
  }

  /** Ask what the chosen word depended on. */
  async depends() {
    const { run, choice, name } = this;
    const button = this.find("#words-depends");
    button.disabled = true; // until it is known, or another word is chosen
    this.say(`Leaving out each word before ${name} …`);
    const answer = await this.server.depends([run, choice.first]).catch(() => null);
    if (run !== this.run || choice !== this.choice) return;
    button.disabled = false;
    if (!answer || answer.error) return this.say(answer?.error ?? NO_REPLY);
    this.losses = answer;
    this.losses.most = Math.max(1, ...answer.losses.map(Math.abs));
    const found = strongest(answer);
    const most = found && quoted(textOf(this.words, found));
    const parts =
      answer.of === "words" ? "" : ` The text is long: whole ${answer.of} are left out.`;
    this.say(
      (found ? this.#lost(most, found.loss) : `${name} needed no word before it.`) + parts,
      true,
    );
    this.paint();
  }

  #lost(before, nats) {
    return `Without ${before} before it, ${this.name} is ${likelihood(nats)}.`;
  }

  /** Let the answer be given again without the chosen words. */
  async forget() {
    const text = this.text.messages[this.answer]?.text ?? "";
    const done = this.again.open(this.run, this.choice, this.name, text);
    this.paint();
    const error = await done;
    if (error) this.say(error);
    this.paint();
  }

  /** Close the other answer. */
  remember() {
    this.again.close();
    this.paint();
  }

  /** Tell of a word, which the pointer is over. */
  point(n) {
    if (n === this.pointed) return;
    this.pointed = n;
    if (n < 0 || !this.choice) return;
    const { losses, words } = this;
    const i = losses ? losses.units.findIndex(([first, stop]) => n >= first && n < stop) : -1;
    if (i >= 0) {
      const [first, stop] = losses.units[i];
      this.say(this.#lost(quoted(textOf(words, { first, stop })), losses.losses[i]), true);
    } else if (!losses && n < this.codes.length) {
      const share = this.codes[n] ? ((this.codes[n] - 1) / 254) ** 2 : null;
      const when = `when ${this.name} was read`;
      this.say(`${quoted(words[n].text)}: ${strong(share)}, ${when}.`);
    }
  }

  /** Say something below; `legend` names the colours of losses. */
  say(line, legend = false) {
    const said = this.find(".said");
    said.textContent = line;
    if (!legend) return;
    for (const [name, text] of Object.entries({ lost: "less likely", gained: "more likely" })) {
      const colour = document.createElement("i");
      colour.className = name;
      const item = document.createElement("span");
      item.append(colour, `${text} without it`);
      said.append(" ", item);
    }
  }
}

/**
 * Make a gr.HTML the words of the chat; its arguments are those of js_on_load.
 * @param {HTMLElement} element
 */
export function show(element, props, server, watch) {
  const section = element.querySelector(".gw");
  section.words = new ChatWords(section, props, server);
  watch("value", () => section.words.start());
}
