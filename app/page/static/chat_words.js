import { bytes } from "../../../mlx_gateloop/watch/shared/data.js";
import { quoted, strong } from "../../../mlx_gateloop/watch/shared/plain.js";
import { ChatText } from "./chat_text.js";
import { Counterfactual, NO_REPLY } from "./counterfactual.js";
import { likelihood, strongest } from "./dependence.js";
import { level, paint } from "./paint.js";
import { textOf } from "./word_list.js";
import { listen } from "./word_listeners.js";

const OFFER = "Click a word, or select several, to see what they do to the answer.";

/** The words of the chat, shaded by how much of each remains in the state, and their actions. */
export class ChatWords {
  constructor(element, server) {
    Object.assign(this, { element, server });
    this.text = new ChatText(document.querySelector("#chat"));
    this.counterfactual = new Counterfactual(this.find("#words-result"), server);
    this.run = this.hint = null;
    this.#clear();
    listen(this);
    document.addEventListener("update", ({ detail: view }) => {
      if (view.element.closest("#chat-view")) this.#update(view);
    });
    document.addEventListener("box", ({ target, detail: { first, stop, ...box } }) => {
      if (!target.closest("#chat-view")) return;
      const chosen = (n) => this.words[n].first < stop && this.words[n].stop > first;
      const found = [...this.words.keys()].filter(chosen);
      if (found.length) this.choose({ first: found[0], stop: found.at(-1) + 1, ...box });
    });
    document.addEventListener("selected", ({ target, detail: token }) => {
      if (target.closest("#chat-view")) this.#follow(token);
    });
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  #clear() {
    this.words = [];
    this.latest = this.codes = new Uint8Array();
    this.answer = -1; // number of its message
    this.done = false;
    this.close();
  }

  /** Update from the chat's state view. */
  #update(view) {
    const { run, hint, recording } = view;
    Object.assign(this, { view, hint });
    if (run !== this.run) {
      this.counterfactual.close();
      this.run = run;
      this.#clear();
    }
    if (!run) return this.close();
    const { words, strengths, answer, done } = recording;
    const ends = done && !this.done;
    Object.assign(this, { words, latest: strengths, answer, done });
    if (this.choice === null) this.codes = this.latest;
    if (ends && this.choice === null) this.setStatus(OFFER);
    if (ends && document.activeElement === document.body && matchMedia("(pointer: fine)").matches)
      document.querySelector("#chat-box textarea").focus({ preventScroll: true }); // it was on Send or Stop
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
    const within = (range) =>
      words.map((_, n) => (n >= range?.first && n < range?.stop ? 0 : undefined));
    paint("forgotten", this.#ranges(within(this.counterfactual.omitted)));
    paint("chosen", this.#ranges(within(choice)));
  }

  /** The level of a word, if it is faint. */
  #faded(n) {
    if (n >= this.codes.length) return this.choice ? "later" : undefined;
    const found = this.codes[n] ? level((this.codes[n] - 1) / 254) : "unknown";
    return found === "unknown" || found < 9 ? found : undefined;
  }

  /** Ranges of words by level; adjacent words share a range. */
  #ranges(levels) {
    const found = new Map();
    for (let first = 0; first < levels.length; first++) {
      const of = levels[first];
      if (of === undefined || !this.text.shows(this.words[first])) continue;
      const { message } = this.words[first];
      const continues = (n) =>
        levels[n] === of && this.words[n].message === message && this.text.shows(this.words[n]);
      let last = first;
      while (last + 1 < levels.length && continues(last + 1)) last++;
      const range = this.text.range(this.words[first], this.words[last]);
      if (!found.has(of)) found.set(of, []);
      found.get(of).push(range);
      first = last;
    }
    return found;
  }

  // ---- the choice ----
  /** Choose words here and in the panel, or none. */
  choose(choice) {
    if (!choice) return this.close();
    if (!this.done) return this.setStatus("Wait for the end of the answer, then choose a word.");
    this.#show(choice);
    this.view.select(this.words[choice.stop - 1].stop - 1);
  }

  /** Choose the word that the panel shows, or none at the end. */
  #follow(token) {
    const { choice, words } = this;
    if (!this.done || (choice && words[choice.stop - 1].stop === token + 1)) return;
    const atEnd = token === this.view.pieces.length - 1;
    const first = atEnd ? -1 : words.findLastIndex(({ stop }) => stop <= token + 1);
    if (first < 0) this.#chooseNone();
    else this.#show({ first, stop: first + 1 });
  }

  #show(choice) {
    const { words, answer } = this;
    const { channels, layer } = choice;
    const scope = channels ? ` in ${channels.length} channels of layer ${layer + 1}` : "";
    const name = quoted(textOf(words, choice)) + scope;
    const single = choice.stop - choice.first === 1;
    Object.assign(this, { choice, name, losses: null });
    this.find(".key").hidden = true;
    this.find("#words-bar").hidden = false;
    this.find(".chosen").textContent = name;
    const late = words[choice.stop - 1].message >= answer;
    const grey = [
      ["#words-forget", late, "Only words before the last answer can be forgotten or changed."],
      ["#words-depends", !single, "For what it depended on, choose one word."],
      ["#words-depends", single && choice.first === 0, "The first word depended on nothing."],
    ].filter(([, off]) => off);
    const off = new Set(grey.map(([id]) => id));
    for (const id of ["#words-forget", "#words-depends"]) this.#enable(this.find(id), !off.has(id));
    for (const button of this.element.querySelectorAll(".change")) this.#enable(button, !late);
    const shading = `Shading: the strength of each word when ${name} was read.`;
    this.setStatus([shading, ...grey.map(([, , why]) => why)].join(" "));
    this.#showStrengths(choice.stop - 1);
    this.paint();
  }

  /** Enable or disable a button; the bar gets its focus, and so the keys. */
  #enable(button, enabled) {
    if (!enabled && button === document.activeElement) this.find("#words-bar").focus();
    button.disabled = !enabled;
  }

  /** Choose nothing, here and in the panel. */
  close() {
    const had = this.choice;
    this.#chooseNone();
    if (had) this.view.select(this.view.pieces.length - 1);
  }

  #chooseNone() {
    this.choice = this.losses = null;
    this.codes = this.latest;
    this.find(".key").hidden = false;
    this.find("#words-bar").hidden = true;
    this.setStatus(this.done ? OFFER : (this.hint ?? ""));
    this.paint();
  }

  /** Show the strengths at the time when a word was read. */
  async #showStrengths(at) {
    const { run, choice } = this;
    const strengths = await this.server.strengths_when([run, at]).catch(() => null);
    if (strengths === null || run !== this.run || choice !== this.choice) return;
    this.codes = bytes(strengths);
    this.paint();
  }

  async depends() {
    const { run, choice, name } = this;
    const button = this.find("#words-depends");
    this.#enable(button, false); // until the result, or another choice
    this.setStatus(`Omitting each word before ${name} in turn …`);
    const answer = await this.server.depends([run, choice.first]).catch(() => null);
    if (run !== this.run || choice !== this.choice) return;
    button.disabled = false;
    if (!answer || answer.error) return this.setStatus(answer?.error ?? NO_REPLY);
    this.losses = answer;
    this.losses.most = Math.max(1, ...answer.losses.map(Math.abs));
    const found = strongest(answer);
    const most = found && quoted(textOf(this.words, found));
    const parts =
      answer.unit === "words" ? "" : ` The text is long, so whole ${answer.unit} are omitted.`;
    this.setStatus(
      (found ? this.#loss(most, found.loss) : `${name} depended on no word before it.`) + parts,
      true,
    );
    this.paint();
  }

  #loss(before, nats) {
    return `Without ${before} before it, ${this.name} is ${likelihood(nats)}.`;
  }

  /** Generate the answer again without the chosen words, or with a change of the state there. */
  async again(change) {
    const choice = change ? this.choice : { ...this.choice, channels: [] };
    const done = this.counterfactual.open(this.run, choice, this.name, change);
    this.paint();
    const error = await done;
    if (error) this.setStatus(error);
    this.paint();
  }

  remember() {
    this.counterfactual.close();
    this.paint();
  }

  /** Describe the word under the pointer. */
  point(n) {
    if (n === this.pointed) return;
    this.pointed = n;
    if (n < 0 || !this.choice) return;
    const { losses, words } = this;
    const i = losses ? losses.units.findIndex(([first, stop]) => n >= first && n < stop) : -1;
    if (i >= 0) {
      const [first, stop] = losses.units[i];
      this.setStatus(this.#loss(quoted(textOf(words, { first, stop })), losses.losses[i]), true);
    } else if (!losses && n < this.codes.length) {
      const share = this.codes[n] ? ((this.codes[n] - 1) / 254) ** 2 : null;
      const when = `when ${this.name} was read`;
      this.setStatus(`${quoted(words[n].text)}: ${strong(share)}, ${when}.`);
    }
  }

  /** Show a line below; `legend` adds the colours of losses. */
  setStatus(line, legend = false) {
    const status = this.find(".status");
    status.textContent = line;
    if (!legend) return;
    for (const [name, text] of Object.entries({ lost: "less likely", gained: "more likely" })) {
      const colour = document.createElement("i");
      colour.className = name;
      const item = document.createElement("span");
      item.append(colour, `${text} without it`);
      status.append(" ", item);
    }
  }
}

/** Attach to a gr.HTML; the arguments come from js_on_load. */
export function show(element, server) {
  const section = element.querySelector(".gw");
  section.words = new ChatWords(section, server);
}
