export const STEP_MS = 60; // per token of playback
const MAX_STEPS = 500; // from the first token to the last

/**
 * Let a button play a range input from its value, or from the start if it is at the end.
 * @param {HTMLButtonElement} button
 * @param {HTMLInputElement} range
 * @param {(value: number) => void} goTo Also moves the range.
 */
export function playing(button, range, goTo) {
  let timer;
  const stop = () => {
    timer = clearInterval(timer);
    button.textContent = "Play";
  };
  const step = () => {
    const last = Number(range.max);
    goTo(Math.min(last, range.valueAsNumber + Math.ceil(last / MAX_STEPS)));
    if (range.valueAsNumber >= last) stop();
  };
  button.addEventListener("click", () => {
    if (timer) return stop();
    button.textContent = "Stop";
    if (range.valueAsNumber >= Number(range.max)) goTo(0);
    timer = setInterval(step, STEP_MS);
  });
}
