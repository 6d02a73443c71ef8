"""The scores of models that write code."""

import numpy as np
import pytest
from helpers.embedded import MODELS, load_embedded
from helpers.experiments import cells
from mlx_lm.tokenizer_utils import TokenizerWrapper

from benchmarks.embedded_models import completions
from benchmarks.embedded_models.kneser_ney import KneserNey
from mlx_gateloop.data import Corpus, pack
from mlx_gateloop.tokenizer import byte_tokenizer

CHATS = [[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]]
FILE = "".join(f"def f{number}(x):\n    return x + {number}\n\n\n" for number in range(30))


@pytest.fixture(scope="module")
def drawn():
    return completions.chosen([FILE], 5)


def test_a_row_counts_what_is_accepted(drawn):
    texts = ["    return 1\n\nx", "    return (\n\nx", '    """Do."""\n', "    y = 1\n...", "x"]
    remaining = iter(texts)

    def writer(prompt, seed, speed):  # a text of `LIMIT` tokens is cut off
        text = next(remaining)
        speed.tokens = completions.LIMIT if text.endswith("...") else 1
        yield from text.removesuffix("...")

    written = completions.write(drawn, writer)
    assert [result.accepted for result in written] == [True, False, True, False, False]
    assert [result.finished for result in written] == [True, True, True, False, True]
    shown = completions.row("a", "1.5", written, "2")[1:]
    assert shown == ["1.5", "2 (12% to 77%)", "1", "1", "1", "2"]


def test_an_ngram_goes_on_as_its_text_did(drawn):
    tokenizer = TokenizerWrapper(byte_tokenizer())
    tokens = pack([FILE] * 20, tokenizer).tokens
    ngram = KneserNey(tokens, completions.ORDER, len(tokenizer.get_vocab()))
    writer = completions.ngram_writer(ngram, tokenizer)
    written = completions.write(drawn, writer)
    assert sum(result.accepted for result in written) >= 3
    assert written == completions.write(drawn, writer)


def test_the_report_has_every_model_the_ngram_and_the_first_bodies(monkeypatch):
    for name, value in {"BODIES": 3, "SHOWN": 2, "LIMIT": 20, "OTHERS": 2}.items():
        monkeypatch.setattr(completions, name, value)
    known = "What does `len` do?", "`len(obj)`: Return the number of items in a container."
    monkeypatch.setattr(completions, "questions", lambda: [known, (known[0], known[1] + "!")])
    monkeypatch.setattr(completions, "other_questions", lambda: [known] * 3)
    monkeypatch.setattr(completions.library, "unread", lambda *_: [FILE])
    read = FILE.replace("x", "y").replace("return y + 7", "return x + 7")
    monkeypatch.setattr(completions.library, "parts", lambda: Corpus([read, *CHATS], []))
    ngrams = []

    def learn(tokens, order, vocabulary):
        ngrams.append(tokens)
        return KneserNey(tokens, order, vocabulary)

    monkeypatch.setattr(completions, "KneserNey", learn)
    sizes, known, table, bodies = completions.report([str(MODELS / "demo")])
    (learned,) = ngrams
    assert np.array_equal(learned, pack([read, *CHATS], load_embedded("demo")[1]).tokens)
    assert sizes.startswith(f"Held-out files: 1; bytes: {len(FILE):,}; tokens: ")
    assert known.endswith(" that were read elsewhere: 2%\n")  # one line of sixty
    rows = cells(table)
    assert [line[0] for line in rows] == ["", "---", "the files themselves", "demo", "5-gram"]
    assert rows[2][2] == "3 (44% to 100%)"
    assert rows[3][-2:] == ["1 of 2", "2 of 2"]
    assert rows[4][-2:] == ["", ""]
    assert 0 < float(rows[4][1]) < float(rows[3][1])  # the demo has never seen such a text
    assert "2. " in bodies
    assert "3. " not in bodies
