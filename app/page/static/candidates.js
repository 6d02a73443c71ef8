import { quoted } from "../../../mlx_gateloop/watch/shared/plain.js";

/**
 * Items of a list of likely tokens.
 * @param {[string, number][]} candidates Texts and probabilities.
 * @param {string} taken The text of the token that was drawn.
 */
export function candidateItems(candidates, taken) {
  return candidates.map(([text, probability]) => {
    const [item, bar, name, number] = ["li", "i", "span", "span"].map((tag) =>
      document.createElement(tag),
    );
    bar.style.width = `${100 * probability}%`;
    name.textContent = quoted(text);
    number.textContent = `${(100 * probability).toFixed(1)}%`;
    item.classList.toggle("taken", text === taken);
    item.append(bar, name, number);
    return item;
  });
}
