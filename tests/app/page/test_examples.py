"""The page's suggestions, and its marks on answers that are likely invented."""

from types import SimpleNamespace

import pytest
from mlx_gateloop.app.generation.run import MessageSpan, Run, Token
from mlx_gateloop.app.page import examples
from mlx_gateloop.app.page.examples import CHAT_EXAMPLES, TEXT_EXAMPLES, confidence, offers
from mlx_gateloop.app.page.markdown import escape_history

MODELS = SimpleNamespace(is_trusted=lambda name: name != "mine")


def test_texts_are_beginnings_from_files_that_code_has_not_read(unread):
    for text in TEXT_EXAMPLES.values():
        (file,) = (file for file in unread if text in file)
        assert len(file.partition(text)[2]) > 100  # something to go on with


def answered(*chances, model="code"):
    run = Run(model, message_spans=(MessageSpan("user", 0, 1),), done=True)
    run.pieces = [Token("?", 0, "prompt")]
    run.pieces += [Token("x", 1, "answer", ((("x", p), ("y", 0.0)))) for p in chances]
    return run


def test_the_confidence_is_the_geometric_mean_of_the_first_tokens_greatest_probabilities():
    assert confidence(answered(0.25, 1.0)) == pytest.approx(0.5)
    assert confidence(answered(*[1.0] * examples.FIRST, 1e-6)) == pytest.approx(1)  # no later ones
    assert confidence(answered()) == 1


@pytest.mark.parametrize("model", examples.THRESHOLDS)
def test_an_unsure_answer_of_an_embedded_model_offers_what_it_knows(model):
    low, high = (examples.THRESHOLDS[model] + step for step in (-0.01, 0.01))
    unsure = answered(low, model=model)
    assert offers(unsure, MODELS) == CHAT_EXAMPLES
    assert offers(answered(high, model=model), MODELS) == []
    assert offers(answered(low, model="mine"), MODELS) == []
    unsure.done = False
    assert offers(unsure, MODELS) == []


def test_the_mark_is_no_part_of_the_text():
    chat = [{"role": "assistant", "content": "`x`: y"}]
    (plain,), (marked,) = (escape_history(chat, offered) for offered in ((), CHAT_EXAMPLES))
    assert [option["value"] for option in marked["options"]] == CHAT_EXAMPLES
    assert "options" not in plain
    added = marked["content"][0]["text"].removeprefix(plain["content"][0]["text"])
    assert added == '</span><span class="invented"></span>'
