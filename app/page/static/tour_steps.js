import { percent } from "../../../mlx_gateloop/watch/shared/plain.js";
import { shares } from "./tour_drawing.js";
import { answers, curves, forgetful, lab } from "./tour_pictures.js";

const halfLife = (size) => Math.round(Math.log(0.5) / Math.log(size));

/** The steps: a title, a text, and what is drawn below in a given width. */
export const STEPS = [
  {
    title: "Forget a word, and see",
    text: ({ nats }) =>
      "The model has read a question. Take the word “split” out of its memory, and let it answer again. " +
      `In the same position, “split” is then ${Number(Math.exp(nats).toPrecision(2)).toLocaleString("en")} times less probable. ` +
      "This is exact, not an estimate. In the chat it takes two clicks: a word, and “Forget this”.",
    draw: answers,
  },
  {
    title: "Half-life: how long a word is kept",
    text: ({ sizes, written, read }) =>
      "Most chat models look back at every word. This one keeps a fixed set of numbers, and each new word " +
      `multiplies them by factors. With 0.99 half is gone after ${halfLife(0.99)} words, with 0.5 after one. ` +
      `The longest of these three memories still holds ${percent(shares(sizes[2], written, read).at(-1))} of “split” ` +
      "when the answer needs it.",
    draw: curves,
  },
  {
    title: "Reset: forgetting at once",
    text: () =>
      "The model chooses other factors at every word, so it can also forget in one step. Where a quarter " +
      "of the channels that usually remember lose more than half, the page marks a reset. Here, resets " +
      "are where turns of the chat begin and end. The model learned this.",
    draw: forgetful,
  },
  {
    title: "Where fixed factors fail",
    text: ({ lab: { models, many } }) => {
      const [chosen, fixed] = models.map(({ right, far }) => [right, far].map(percent));
      return (
        "Many models of this kind have the same factors at every word. These two models add up numbers, modulo 5, " +
        "and start again at each R. The one that chooses its factors empties its state there. The other has fixed " +
        `factors, so all that it holds must fade: ${fixed[0]} of its answers are right, against ${chosen[0]}, and ` +
        `${fixed[1]} against ${chosen[1]} where more than ${many} numbers count. Try it in the Memory lab.`
      );
    },
    draw: lab,
  },
];
