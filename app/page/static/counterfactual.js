import { plain } from "../../../mlx_gateloop/watch/shared/plain.js";

const INTERVAL_MS = 120; // between requests
export const NO_REPLY = "The server is busy, or no longer has this answer. Retry the answer.";
const SAME = "The seed and settings are the same; the conversation is unchanged.";

/** Names of answers after the changes of counterfactual.py. */
const NAMES = [
  (name) => `Without ${name}`,
  (name) => `With what it held wiped at ${name}`,
  (name) => `With nothing lost at ${name}`,
  (name) => `With ${name} amplified`,
];

/** The last answer beside one without some words, or after an edit, while that is generated. */
export class Counterfactual {
  constructor(element, server) {
    Object.assign(this, { element, server });
    this.run = null;
    /** @type {import("./word_list.js").Choice | null} The omitted words. */
    this.omitted = null;
  }

  /** True while the answer is generated; page.css then shows Stop. */
  get running() {
    return this.element.classList.contains("running");
  }
  set running(running) {
    this.element.classList.toggle("running", running);
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  /** Answer again without the chosen words, or with a change of their state. */
  async open(run, { first, stop, layer = 0, channels = [] }, name, change = 0) {
    const omitted = { first, stop: change ? first : stop };
    Object.assign(this, { run, omitted });
    this.element.hidden = true;
    await this.ended;
    const started = await this.server
      .again([run, first, stop, change, layer, ...channels])
      .catch(() => null);
    if (this.omitted !== omitted) return;
    if (!started || started.error) return this.#fail(started?.error ?? NO_REPLY);
    this.element.hidden = false;
    this.running = true;
    this.find(".title").textContent = NAMES[change](name);
    for (const side of [".original", ".without"]) this.#fill(side, [], "del");
    this.find(".note").textContent = "Generating the answer again …";
    this.element.scrollIntoView({ block: "nearest" });
    return this.#follow(run, started.run, omitted);
  }

  async #follow(run, other, omitted) {
    for (let done = false; !done; ) {
      const answer = await this.server.counterfactual([run]).catch(() => null);
      if (this.omitted !== omitted) return;
      if (!answer || answer.error) return this.#fail(answer?.error ?? NO_REPLY);
      if (answer.run !== other) {
        this.run = null; // the other page's answer continues
        return this.#fail("Another page repeats this answer without other words.");
      }
      this.#fill(".original", answer.before, "del");
      this.#fill(".without", answer.after, "ins");
      done = answer.done;
      if (!done) await new Promise((wake) => setTimeout(wake, INTERVAL_MS));
    }
    this.running = false;
    this.element.scrollIntoView({ block: "nearest" }); // with the message box below
    const same = !this.find("del") && !this.find("ins");
    const change = same ? "Nothing changed" : "What changed is marked";
    this.find(".note").textContent = `${change}. ${SAME}`;
  }

  /** Show parts of a text, `[text, changed]`; model output is only ever set as textContent. */
  #fill(side, parts, mark) {
    const elements = parts.map(([text, changed]) => {
      const element = document.createElement(changed ? mark : "span");
      element.textContent = plain(text);
      return element;
    });
    this.find(side).replaceChildren(...elements);
  }

  #fail(line) {
    this.close();
    return line;
  }

  /** Show the conversation alone. */
  close() {
    if (this.run) this.ended = this.server.undo([this.run]).catch(() => null);
    this.run = this.omitted = null;
    this.running = false;
    this.element.hidden = true;
  }
}
