import { bytes } from "../../../mlx_gateloop/watch/shared/data.js";
import { quoted, strong } from "../../../mlx_gateloop/watch/shared/plain.js";
import { Again, NO_REPLY } from "./again.js";
import { ChatText } from "./chat_text.js";
import { likelihood, strongest } from "./dependence.js";
import { level, paint } from "./paint.js";
import { textOf } from "./word_list.js";
import { listen } from "./word_listeners.js";

const OFFER = "Click a word, or select some: what it depended on, and the answer without it.";

/** The words of the chat, as strong as what is left of them in the state; and what to do with them. */
export class ChatWords {
  constructor(element, server) {
    Object.assign(this, { element, server });
    this.text = new ChatText(document.querySelector("#chat"));
    this.again = new Again(this.find("#words-result"), server);
    this.run = this.hint = null;
    this.#clear();
    listen(this);
    document.addEventListener("news", ({ detail: view }) => {
      if (view.element.closest("#chat-view")) this.#take(view);
    });
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  #clear() {
    this.words = [];
    this.latest = this.codes = new Uint8Array();
    this.answer = -1; // its message
    this.done = false;
    this.close();
  }

  /** Take what the chat's state view shows. */
  #take({ run, hint, recording }) {
    this.hint = hint;
    if (run !== this.run) {
      this.again.close();
      this.run = run;
      this.#clear();
    }
    if (!run) return this.close();
    const { words, strengths, answer, done } = recording;
    const ends = done && !this.done;
    Object.assign(this, { words, latest: strengths, answer, done });
    if (this.choice === null) this.codes = this.latest;
    if (ends && this.choice === null) this.say(OFFER);
    this.paint();
  }

  // ---- painting ----
  paint() {
    const { words, losses, choice } = this;
    const fades = this.find("#words-fade input").checked && !losses;
    const levels = this.#ranges(fades ? words.map((_, n) => this.#faded(n)) : []);
    const most = this.hint ? this.text.messages.length : (words.at(-1)?.message ?? 0);
    const unknown = fades ? this.text.without(words, most) : [];
    if (unknown.length) {
      const ranges = unknown.map((message) => this.text.range(message));
      levels.set("unknown", [...(levels.get("unknown") ?? []), ...ranges]);
    }
    paint("fade", levels);
    this.find(".unknown").hidden = !levels.has("unknown");
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
    const found = this.codes[n] ? level((this.codes[n] - 1) / 254) : "unknown";
    return found === "unknown" || found < 9 ? found : undefined;
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
    this.say(this.done ? OFFER : (this.hint ?? ""));
    this.paint();
  }

  /** Show the strengths when a word was read. */
  async #look(at) {
    const { run, choice } = this;
    const strengths = await this.server.strong([run, at]).catch(() => null);
    if (strengths === null || run !== this.run || choice !== this.choice) return;
    this.codes = bytes(strengths);
    this.paint();
  }

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
    const done = this.again.open(this.run, this.choice, this.name);
    this.paint();
    const error = await done;
    if (error) this.say(error);
    this.paint();
  }

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

/** Make a gr.HTML the words of the chat; its arguments are those of js_on_load. */
export function show(element, server) {
  const section = element.querySelector(".gw");
  section.words = new ChatWords(section, server);
}
