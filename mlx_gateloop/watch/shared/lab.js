import { bytes } from "./data.js";
import { deleted, example, inserted, left, START, solved, summary, toggled } from "./lab_cells.js";
import { Model, tensors } from "./model.js";

const MODELS = ["Data-controlled", "Fixed"];
const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 };
const NAMES_PX = { wide: 118, narrow: 72 }; // width of the row labels
const CELL_PX = { wide: 34, narrow: 25 };
const GAP_PX = 2;
const NARROW_PX = 600;

function make(name, properties, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

/** The lab: editable cells, and the answers and memory of both models. */
class Lab {
  constructor(section, props) {
    Object.assign(this, { section, props });
    this.models = props.models.map(
      ({ config, weights }) => new Model(config, tensors(bytes(weights))),
    );
    this.find = (name) => section.querySelector(`.${name}`);
    this.before = []; // digits before they became resets
    this.#listen();
    this.show(START);
  }

  show(cells) {
    this.cells = cells;
    this.before = [];
    this.position = cells.length - 1;
    this.#changed();
  }

  #changed() {
    this.position = Math.min(this.position, this.cells.length - 1);
    this.solved = solved(this.cells, this.models, this.props);
    this.#layOut();
  }

  /** Break the cells into lines that fit the width. */
  #layOut() {
    const width = this.section.clientWidth;
    if (!width) return; // its tab is closed
    const size = width < NARROW_PX ? "narrow" : "wide";
    const [cell, names] = [CELL_PX[size], NAMES_PX[size]];
    const fit = Math.max(4, Math.floor((width - names - 12) / (cell + GAP_PX)));
    const lines = Math.ceil(this.cells.length / fit);
    const each = Math.ceil(this.cells.length / lines);
    const key = `${size} ${each} ${this.cells.length}`;
    if (key !== this.key) {
      this.key = key;
      const container = this.find("lines");
      container.style.setProperty("--cell", `${cell}px`);
      container.style.setProperty("--names", `${names}px`);
      this.columns = this.cells.map((_, i) => this.#column(i));
      const starts = Array.from({ length: lines }, (_, line) => line * each);
      container.replaceChildren(
        ...starts.map((start) => this.#line(this.columns.slice(start, start + each))),
      );
    }
    this.#paint();
  }

  /** The table cells of a position, from top to bottom. */
  #column(i) {
    const button = make("button", { type: "button" });
    const held = () => make("td", { className: "held" }, make("span", {}));
    const cells = [
      make("td", {}, button),
      make("td", { className: "truth" }),
      ...MODELS.flatMap(() => [held(), make("td", { className: "answer" })]),
    ];
    for (const cell of cells) cell.dataset.position = i;
    return { button, cells };
  }

  #line(columns) {
    const names = [
      ["", "Digits"],
      ["", "Right answer"],
      ...MODELS.flatMap((model) => [
        [model, "still holds"],
        ["", "answers", model],
      ]),
    ];
    const rows = names.map(([model, name, of], row) => {
      const label = make("th", { scope: "row" }, ...(model ? [make("b", {}, model)] : []), name);
      if (of) label.setAttribute("aria-label", `${of} answers`);
      const cells = columns.map((column) => column.cells[row]);
      return make("tr", { className: model ? "first" : "" }, label, ...cells);
    });
    return make("table", {}, make("tbody", {}, ...rows));
  }

  #paint() {
    const { cells, position, solved, columns, props } = this;
    if (!columns) return;
    const text = (cell) => (cell === props.reset ? "R" : String(cell));
    columns.forEach(({ button, cells: [, truth, ...rows] }, i) => {
      const isReset = cells[i] === props.reset;
      button.textContent = text(cells[i]);
      button.classList.toggle("reset", isReset);
      button.tabIndex = i === position ? 0 : -1;
      button.setAttribute("aria-label", `position ${i + 1}: ${isReset ? "reset" : cells[i]}`);
      if (i === position) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      truth.textContent = solved.right[i];
      for (const cell of columns[i].cells) cell.classList.toggle("chosen", i === position);
      MODELS.forEach((_, model) => {
        this.#hold(rows[2 * model], text(cells[i]), i, solved.left[model]);
        this.#answer(rows[2 * model + 1], solved.answers[model][i], solved.right[i]);
      });
    });
    this.#showStatus();
  }

  /** Show the strength of a token at the chosen position. */
  #hold(cell, text, i, rows) {
    const strength = left(rows, this.position, i);
    const later = i > this.position;
    cell.classList.toggle("later", later);
    cell.style.setProperty("--left", strength.toFixed(3));
    cell.firstChild.textContent = later ? "" : text;
    cell.title = later ? "" : `${Math.round(100 * strength ** 2)}% as strong as the strongest`;
  }

  #answer(cell, answer, right) {
    cell.textContent = answer;
    cell.classList.toggle("right", answer === right);
    cell.classList.toggle("wrong", answer !== right);
    cell.dataset.mark = answer === right ? "✓" : "✗";
    cell.ariaLabel = `${answer}, ${answer === right ? "right" : "wrong"}`;
  }

  #showStatus() {
    const { solved, cells, position, props } = this;
    this.find("status").textContent = summary(solved, cells, position, props, MODELS);
    this.section.querySelectorAll(".score").forEach((score, model) => {
      const good = solved.answers[model].filter((answer, i) => answer === solved.right[i]).length;
      score.textContent = `${good} of ${cells.length} right here`;
    });
  }

  choose(position, focus = false) {
    this.position = Math.min(this.cells.length - 1, Math.max(0, position));
    this.#paint();
    if (focus) this.columns?.[this.position].button.focus();
  }

  /** Edit the chosen cell; return false for a key without a meaning. */
  press(key) {
    const { cells, position, props } = this;
    const digit = /^\d$/.test(key) ? Number(key) : props.modulus;
    const edits = {
      r: () => toggled(cells, this.before, position, props.reset),
      Insert: () => inserted(cells, position, props.max),
      Delete: () => deleted(cells, position),
    };
    edits.Backspace = edits.Delete;
    edits.R = edits.r;
    const edit = digit < props.modulus ? () => cells.with(position, digit) : edits[key];
    if (!edit) return false;
    this.cells = edit();
    if (digit < props.modulus) this.position = Math.min(position + 1, cells.length - 1);
    if (this.cells.length !== cells.length) this.before = [];
    this.#changed();
    return true;
  }

  #listen() {
    const { section } = this;
    const lines = this.find("lines");
    const positionOf = (event) => event.target.closest("td")?.dataset.position;
    lines.addEventListener("click", (event) => {
      const position = positionOf(event);
      if (position === undefined) return;
      this.choose(Number(position), true);
      if (event.target.closest("button")) this.press("r");
      this.columns[this.position].button.focus();
    });
    lines.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return; // browser shortcuts
      const step = STEPS[event.key];
      if (step !== undefined) this.choose(this.position + step, true);
      else if (!this.press(event.key)) return;
      else this.columns[this.position].button.focus();
      event.preventDefault();
    });
    section.addEventListener("click", (event) => {
      const { example: name, key } = event.target.dataset;
      if (name) this.show(example(name, this.props, Math.random));
      if (key) this.press(key);
    });
    new ResizeObserver(() => this.#layOut()).observe(section);
  }
}

/** Attach the lab to an element that holds lab.html. @param {object} props Made by lab.py. */
export function attach(element, props) {
  const section = element.querySelector(".lab");
  section.lab = new Lab(section, props);
}
