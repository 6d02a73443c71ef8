import { plain } from "../../../mlx_gateloop/watch/shared/plain.js";

const INTERVAL_MS = 120; // between requests
export const NO_REPLY = "The server is busy, or keeps this answer no longer: retry it.";
const SAME = "The same seed and settings; the conversation stays as it is.";

/** The last answer beside the one without some words, as it is written. */
export class Again {
  constructor(element, server) {
    Object.assign(this, { element, server });
    this.run = null;
    this.going = false; // while the answer is written
    /** @type {import("./word_list.js").Choice | null} The words that are left out. */
    this.forgotten = null;
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  async open(run, { first, stop }, name) {
    const forgotten = { first, stop };
    Object.assign(this, { run, forgotten });
    this.element.hidden = true;
    await this.ended;
    const begun = await this.server.forget([run, first, stop]).catch(() => null);
    if (this.forgotten !== forgotten) return;
    if (!begun || begun.error) return this.#fail(begun?.error ?? NO_REPLY);
    this.element.hidden = false;
    this.going = true;
    this.find(".title").textContent = `Without ${name}`;
    for (const place of [".original", ".without"]) this.#fill(place, [], "del");
    this.find(".note").textContent = "The answer is given again …";
    this.element.scrollIntoView({ block: "nearest" });
    return this.#follow(run, begun.again, forgotten);
  }

  async #follow(run, again, forgotten) {
    for (let done = false; !done; ) {
      const news = await this.server.again([run]).catch(() => null);
      if (this.forgotten !== forgotten) return;
      if (!news || news.error) return this.#fail(news?.error ?? NO_REPLY);
      if (news.again !== again) {
        this.run = null; // the other page's answer goes on
        return this.#fail("Another page has left out other words.");
      }
      this.#fill(".original", news.before, "del");
      this.#fill(".without", news.after, "ins");
      done = news.done;
      if (!done) await new Promise((wake) => setTimeout(wake, INTERVAL_MS));
    }
    this.going = false;
    const same = !this.find("del") && !this.find("ins");
    this.find(".note").textContent = same
      ? `Nothing changed. ${SAME}`
      : `What changed is marked. ${SAME}`;
  }

  /** Show parts of a text, [text, changed]; what a model wrote is only ever set as textContent. */
  #fill(place, parts, mark) {
    const elements = parts.map(([text, changed]) => {
      const element = document.createElement(changed ? mark : "span");
      element.textContent = plain(text);
      return element;
    });
    this.find(place).replaceChildren(...elements);
  }

  #fail(line) {
    this.close();
    return line;
  }

  /** Show the conversation alone, as it is. */
  close() {
    if (this.run) this.ended = this.server.undo([this.run]).catch(() => null);
    this.run = this.forgotten = null;
    this.going = false;
    this.element.hidden = true;
  }
}
