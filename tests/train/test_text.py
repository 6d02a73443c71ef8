"""Text as the source of a run."""

import json
import math

import mlx.core as mx
import numpy as np
import pytest
from helpers.errors import refusal
from helpers.models import says, tiny_model
from helpers.training import TEXT, tiny_run

from mlx_gateloop.distributed.world import ALONE
from mlx_gateloop.tokenizer import CHAT_TEMPLATE, byte_tokenizer
from mlx_gateloop.train.setup import Trainer, make_source
from mlx_gateloop.train.text import _set_chat_template, first_prompt, half_lives

CHAT = [says("user", "Hi")]
ANSWERED = [*CHAT, says("assistant", "Ho")]


def test_the_loss_on_answers_is_that_of_a_plain_loop(tmp_path):
    """Prompts and several turns, each conversation alone, one token at a time."""
    chats = [
        [says("user", "1?"), says("assistant", "one"), says("user", "2"), says("assistant", "t")],
        [says("system", "a"), says("user", "bc"), says("assistant", "defg hi")],
    ]
    text = "".join(json.dumps({"messages": chat}) + "\n" for chat in chats)
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text(text)
    sizes = {"data__length": 91, "data__batch_size": 1, "model__dropout": 0}
    config = tiny_run(data__loss_on="answers", **sizes)
    source = make_source(config, str(tmp_path))
    trainer = Trainer(config, source)
    tokenizer, nats = source._tokenizer, []
    for chat in chats:
        ids, is_answer = [], []
        for turn in chat:
            head = tokenizer.encode(f"<|im_start|>{turn['role']}\n")
            body = tokenizer.encode(f"{turn['content']}<|im_end|>\n")
            ids += head + body
            is_answer += [False] * len(head) + [turn["role"] == "assistant"] * len(body)
        trainer.model.eval()
        logits = np.array(trainer.model(mx.array([ids])), np.float64)[0]
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        nats += [-logs[n - 1, ids[n]] for n in range(1, len(ids)) if is_answer[n]]
    score = source.evaluate(trainer.model, ALONE)
    assert score.tokens == len(nats)
    assert score.loss_nats == pytest.approx(np.mean(nats), abs=1e-6)
    assert trainer.step(0)[0] == pytest.approx(np.mean(nats), abs=1e-6)


def test_bits_are_those_of_the_bytes_that_rows_are_asked_for(tmp_path):
    """A row of its own has no target for a document's first token."""
    (tmp_path / "texts.jsonl").write_text('{"text": "äb"}\n' * 40)
    config = tiny_run(data__packed=False, data__batch_size=1)
    source = make_source(config, str(tmp_path / "texts.jsonl"))
    score = source.evaluate(Trainer(config, source).model, ALONE)
    assert score.tokens == 12, "half of ä, b and the end of each text"
    assert score.bits_per_byte == pytest.approx(score.loss_nats * 12 / 8 / math.log(2))


def test_answers_without_a_letter_and_a_damaged_tokenizer(tmp_path):
    text = json.dumps({"messages": [CHAT[0], says("assistant", "")]})
    (tmp_path / "chats.jsonl").write_text(f"{text}\n" * 40)
    answers, data = tiny_run(data__loss_on="answers"), str(tmp_path / "chats.jsonl")
    assert "or give more answers" in refusal(make_source, answers, data)
    model = {"type": "BPE", "vocab": {"a": "x"}, "merges": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    given = tiny_run(tokenizer__kind="pretrained", tokenizer__path=str(tmp_path))
    for saved in (None, tmp_path):
        assert "cannot be loaded" in refusal(make_source, given, data, saved)


@pytest.mark.parametrize(("own", "documents", "template"), [
    ("own", ["a text"], None), (None, ["a text", CHAT], CHAT_TEMPLATE), ("own", [CHAT], "own"),
])  # fmt: skip
def test_conversations_bring_a_template_and_leave_the_tokenizers_own(own, documents, template):
    tokenizer = byte_tokenizer()
    for keep, expected in ((False, template), (True, template or own)):
        tokenizer.chat_template = own
        _set_chat_template(tokenizer, documents, keep)
        assert tokenizer.chat_template == expected


def test_half_lives_of_known_transitions():
    model = tiny_model(transition="fixed")
    for number, layer in enumerate(model.layers):
        layer.time_mixing.gamma = mx.full((8,), 1.0 + number)
    expected = [math.log(2) / math.log1p(math.exp(-gamma)) for gamma in (1.0, 2.0)]
    assert half_lives(model, np.arange(9)) == pytest.approx(expected, rel=1e-5)
    assert half_lives(tiny_model(transition="linear_attention"), np.arange(9)) == [1e9, 1e9]


def test_a_sample_is_the_same_whatever_was_drawn_before(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT[:2000])
    source, model = make_source(tiny_run(), str(tmp_path / "text.txt")), tiny_model(vocab_size=262)
    before = mx.array(mx.random.state[0])
    one = source.glimpse(model)
    assert mx.array_equal(before, mx.random.state[0]), "training goes on as without it"
    mx.random.seed(5)
    assert source.glimpse(model) == one
    source._config.sample_tokens = 0
    assert source.glimpse(model) == {"half_lives": one["half_lives"]}
    source._config.sample_tokens = 40
    source._prompt, source._tokenizer.chat_template = CHAT, "{{ raise_exception('alone') }}"
    assert source.glimpse(model)["sample"].endswith("alone"), "a refused prompt ends no run"


def test_a_prompt_ends_before_the_first_answer():
    cases = [[*ANSWERED, *CHAT]], ["a text", ANSWERED], [CHAT], []
    assert [first_prompt(case) for case in cases] == [CHAT, "", "", ""]
