import { box } from "./tour_drawing.js";

/** Both models' answers below the numbers, and how much of the state each step keeps. */
export function lab({ lab: { inputs, right, reset, models } }) {
  const cells = inputs.map((input, token) => {
    const isReset = input === reset;
    const answers = models.map(({ answers, sizes }) => {
      const wrong = answers[token] !== right[token];
      const answer = box("span", wrong ? "answer wrong" : "answer", String(answers[token]));
      answer.style.setProperty("--kept", sizes[token]);
      answer.title = `${wrong ? `Right is ${right[token]}. ` : ""}Mean |a| ${sizes[token]}`;
      return answer;
    });
    const number = box("b", "", isReset ? "R" : String(input));
    return box("div", isReset ? "cell reset" : "cell", number, ...answers);
  });
  const keys = models.map(({ name, answers }, i) => {
    const wrong = answers.filter((answer, token) => answer !== right[token]).length;
    const row = i ? "Lower" : "Upper";
    return box("span", "", `${row} answers: ${name} a, ${wrong} of ${answers.length} wrong`);
  });
  const picture = box("div", "lab", ...cells);
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", keys.map((key) => key.textContent).join("; "));
  const bars = box("span", "", "Bars: |a|, what each step keeps of the state");
  return [picture, box("div", "key", ...keys, bars)];
}
