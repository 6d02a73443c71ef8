import { candidateItems } from "./memory.js";

/** Weigh candidates by a temperature; their shares add up to 1. */
export function tempered(candidates, temperature) {
  const best = Math.max(...candidates.map(([, chance]) => chance));
  const power = 1 / Math.max(temperature, 0.01); // 0 takes the likeliest
  const weights = candidates.map(([, chance]) => (chance / best) ** power);
  const sum = weights.reduce((a, b) => a + b, 0);
  return candidates.map(([text], i) => [text, weights[i] / sum]);
}

/** Show shares among the likeliest next words of the completion, as the temperature changes. */
export function attach(element) {
  const list = element.querySelector("ol");
  let candidates = [];
  const slider = () => document.querySelector("#temperature-here input")?.valueAsNumber ?? 1;
  const show = (temperature = slider()) => {
    list.replaceChildren(...candidateItems(tempered(candidates, temperature)));
    element.hidden = !candidates.length;
  };
  document.addEventListener("row", ({ target, detail: row }) => {
    if (!target.closest("#complete-view")) return;
    candidates = row.next;
    show();
  });
  document.addEventListener("input", ({ target }) => {
    if (!target.closest("#temperature, #temperature-here")) return;
    show(target.valueAsNumber || 0); // NaN while the field is empty
  });
  show();
}
