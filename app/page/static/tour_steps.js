import { percent } from "../../../mlx_gateloop/watch/shared/plain.js";
import { left, shares, size } from "./tour_drawing.js";
import { answers, curves, dials, forgetful, lab, read, update } from "./tour_pictures.js";

const whole = (formula) => formula.replaceAll(" ", "\u00a0"); // on one line
const halfLife = (size) => Math.round(Math.log(0.5) / Math.log(size));

/** The steps: a title, a text, and what is drawn below in a given width. */
export const STEPS = [
  {
    title: "One word, one update",
    text: () =>
      "Most chat models look back at every word. This one keeps a fixed set of numbers, and each word, " +
      `or piece of one, updates them: ${whole("h = a h + k v")}. The old number h is multiplied by ` +
      "a, and k v is what the word writes. The numbers are complex: arrows with a length and a direction.",
    draw: update,
  },
  {
    title: "Half-life: how long a word is kept",
    text: ({ channel, written, read }) =>
      `The length of a decides what stays. With ${whole("|a| = 0.99")} half is gone after ` +
      `${halfLife(0.99)} words, with 0.5 after one. That is the half-life. The number of step 1 still holds ${percent(
        shares(channel.a.map(size), written, read).at(-1),
      )} of “split” when the answer needs it.`,
    draw: curves,
  },
  {
    title: "Reset: forgetting at once",
    text: () =>
      "The model chooses another a at every word, so it can also forget in one step. Where a quarter " +
      "of the channels that usually remember lose more than half, we speak of a reset. Here that is " +
      "where turns of the chat begin and end. No one programmed this.",
    draw: forgetful,
  },
  {
    title: "Phase: which way it points",
    text: () =>
      "a also turns the arrow, by an angle called the phase. Words that were written at different times " +
      "then point in different directions, and can be distinguished in one sum. This is “split” in the " +
      "number of step 1: it turns and fades, and is dropped once the answer has said it.",
    draw: dials,
  },
  {
    title: "Query: what the next word reads",
    text: ({ channel, read, chance, written }) => {
      const parts = left(channel, read).map(([re]) => re * channel.q[read]);
      const sum = parts.reduce((a, b) => a + b);
      return (
        `To choose the next word the model reads every number: ${whole("y = Re(q h)")}. As h is a ` +
        `sum, y splits exactly into what each word wrote. Here ${percent(parts[written] / sum)} of it is “split”, and ` +
        `the next word was “split”, with a probability of ${(100 * chance).toFixed(1)}%.`
      );
    },
    draw: read,
  },
  {
    title: "Forget a word, and see",
    text: ({ nats }) =>
      "Was it really remembered there? Take the update of “split” out of every layer, compute all that " +
      "follows again, and let the model answer once more. This is exact, not an estimate. In its place " +
      `“split” is now ${Number(Math.exp(nats).toPrecision(2)).toLocaleString("en")} times less probable.`,
    draw: answers,
  },
  {
    title: "Where fixed transitions fail",
    text: ({ lab: { models, many } }) => {
      const [chosen, fixed] = models.map(({ right, far }) => [right, far].map(percent));
      return (
        "Many models of this kind have the same a at every word. Two of them add up numbers, modulo 5, " +
        "and start again at each R. The one that chooses a empties its state there. The other can’t, so " +
        `all that it holds must fade: ${fixed[0]} of its answers are right, against ${chosen[0]}, and ` +
        `${fixed[1]} against ${chosen[1]} where more than ${many} numbers count. Try it in the Memory lab.`
      );
    },
    draw: lab,
  },
];
