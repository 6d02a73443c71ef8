"""Answers that are likely invented: by the probability of their first tokens."""

import pytest
from mlx_gateloop.app.generation.run import MessageSpan, Run, Token
from mlx_gateloop.app.page.examples import CHAT_EXAMPLES
from mlx_gateloop.app.page.invented import FIRST, THRESHOLDS, confidence, offers
from mlx_gateloop.app.page.markdown import escape_history

CHAT = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "`x`: y"}]


class Models:
    def is_trusted(self, name):
        return name != "mine"


def answered(*chances, model="code"):
    run = Run(model, message_spans=(MessageSpan("user", 0, 1),))
    run.pieces = [Token("?", 0, "prompt")]
    run.pieces += [Token("x", 1, "answer", ((("x", p), ("y", 0.0)))) for p in chances]
    run.finish()
    return run


def test_the_confidence_is_the_geometric_mean_of_the_first_tokens_greatest_probabilities():
    assert confidence(answered(0.25, 1.0)) == pytest.approx(0.5)
    assert confidence(answered(*[1.0] * FIRST, 1e-6)) == pytest.approx(1)  # not the later ones
    assert confidence(answered()) == 1


@pytest.mark.parametrize("model", THRESHOLDS)
def test_an_unsure_answer_of_an_embedded_model_offers_what_it_knows(model):
    low, high = (THRESHOLDS[model] + step for step in (-0.01, 0.01))
    assert offers(answered(low, model=model), Models()) == CHAT_EXAMPLES
    assert offers(answered(high, model=model), Models()) == []
    assert offers(answered(low, model="mine"), Models()) == []
    running = answered(low, model=model)
    running.done = False
    assert offers(running, Models()) == []


def test_the_mark_is_no_part_of_the_text():
    plain, marked = (escape_history(CHAT, offered)[-1] for offered in ((), CHAT_EXAMPLES))
    assert [option["value"] for option in marked["options"]] == CHAT_EXAMPLES
    assert "options" not in plain
    added = marked["content"][0]["text"].removeprefix(plain["content"][0]["text"])
    assert added == '</span><span class="invented"></span>'
