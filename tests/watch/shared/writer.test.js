import assert from "node:assert";
import { test } from "node:test";
import { randomFrom } from "../../../mlx_gateloop/watch/shared/model.js";
import { MAX_TOKENS, Writer } from "../../../mlx_gateloop/watch/shared/writer.js";

const model = { config: { num_hidden_layers: 1 }, start: () => [], step: () => [] };
model.logits = () => [1, 0];
const tokenizer = { encode: (text) => Array.from(text, () => 7), decode: (ids) => ids.map(String) };
tokenizer.longest = 1;

function writer(chat) {
  return new Writer(model, tokenizer, { chat, stops: [], rates: [1e-6, 16] });
}

for (const chat of [null, ["<user>", "</answer><user>", "</user>"]])
  test(`a message that does not fit leaves nothing behind, ${chat ? "in a chat" : "as text"}`, () => {
    const made = writer(chat);
    assert.throws(() => [...made.say("x".repeat(MAX_TOKENS - (chat ? 7 : -1)))], /at most 1000/);
    assert.deepEqual([made.ids, made.kinds], [[], []]);
    for (const _ of made.say("abc"));
    assert.equal(made.ids.length, chat ? 16 : 3);
    assert.equal(made.kinds.filter((kind) => kind === "prompt").length, 3);
  });

test("a text ends at the most tokens that it may have", () => {
  const made = writer(null);
  for (const _ of made.say("x".repeat(MAX_TOKENS - 5)));
  for (const _ of made.write({ maxTokens: 9 }));
  assert.equal(made.answer.length, 5);
});

test("the first draws of nearby seeds are spread evenly", () => {
  const tenths = Array(10).fill(0);
  for (let seed = 0; seed < 1000; seed++) tenths[Math.floor(10 * randomFrom(seed)())]++;
  for (const count of tenths) assert.ok(count > 60 && count < 140, `${tenths}`);
});

test("a question is read again where the template has nothing after it", () => {
  const made = writer(["<user>", "", ""]);
  for (const _ of made.say("abc"));
  const steps = made.without([7]);
  let step = steps.next();
  while (!step.done) step = steps.next();
  assert.equal(step.value.ids.length, 8);
});
