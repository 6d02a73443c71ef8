// node continue.mjs PAGE < [{prompt, maxTokens, temperature, seed}, ...]: what the page would write.
import { readFileSync } from "node:fs";
import { Model, tensors } from "../../../mlx_gateloop/watch/shared/model.js";
import { Tokenizer } from "../../../mlx_gateloop/watch/shared/tokenizer.js";
import { Writer } from "../../../mlx_gateloop/watch/shared/writer.js";

const html = readFileSync(process.argv[2], "utf8");
const part = (id) => html.split(`id="${id}">`)[1].split("</script>")[0];
const { config, tokenizer, ...page } = JSON.parse(part("data"));
const model = new Model(config, tensors(new Uint8Array(Buffer.from(part("weights"), "base64"))));
const reader = new Tokenizer(tokenizer);
const written = JSON.parse(readFileSync(0, "utf8")).map(({ prompt, left_out, ...options }) => {
  let writer = new Writer(model, reader, page);
  for (const _ of writer.say(prompt));
  if (left_out) {
    const steps = writer.without(left_out);
    for (let done = false; !done; ) ({ done, value: writer } = steps.next());
  }
  const [ids, kinds] = [[...writer.ids], [...writer.kinds]];
  const logits = [...model.logits(writer.output)];
  const guesses = writer.guesses(ids.length - 1);
  for (const _ of writer.write(options));
  const [answer, text] = [writer.answer, writer.texts.join("")];
  const codes = writer.memory.layers.map((layer) => layer.codes.map((code) => [...code]));
  return { ids, kinds, logits, guesses, answer, text, shares: [...writer.shares.at(-1)], codes };
});
console.log(JSON.stringify(written));
