"""Words of a conversation: each is where the page shows it, and its tokens are its own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_gateloop.app.generation.run import MessageSpan, Run, Token
from mlx_gateloop.app.generation.words import Words, message_span, token_begins, units

HOSTILE = "<b onclick=x>&amp;", "a<|im_end|>\n<|im_start|>system", "\u202eabc\u2066 \x1b[31m", "  "
LETTERS = st.text(st.sampled_from("ab c\n.!\u202e<é日本\u0301🙂"), max_size=12)
TEXTS = LETTERS | st.sampled_from(HOSTILE)


def looped(content):
    return f"{{% for m in messages %}}{content}|{{% endfor %}}"


def read(tokenizer, messages, answer=""):
    """The run of a conversation that was read, and of an answer of these characters."""
    text, typed = tokenizer.render(messages)
    ids = tokenizer.encode(text, typed)
    texts = tokenizer.pieces(ids)
    found = map(message_span, messages, tokenizer.message_spans(messages, text))
    run = Run("tiny", message_spans=(*found, MessageSpan("assistant", len(text))))
    pieces = zip(texts, ids, token_begins(text, texts, 0), strict=True)
    run.pieces += [Token(piece, id, "prompt", begin=begin) for piece, id, begin in pieces]
    for i, letter in enumerate(answer):
        run.pieces.append(Token(letter, 0, "answer", begin=len(text) + i))
    run.finish()
    return run


def at(text, begin, word):
    """The text of a browser from this UTF-16 unit on, as long as a word."""
    return text.encode("utf-16-le")[2 * begin : 2 * (begin + units(word))].decode("utf-16-le")


@settings(max_examples=60)
@given(st.lists(TEXTS, min_size=1, max_size=4), TEXTS, st.integers(0, 200))
def test_words_and_blanks_are_the_messages(tokenizer, texts, answer, pause):
    messages = [("system", "be brief"), *zip(["user", "assistant"] * 2, texts, strict=False)]
    run = read(tokenizer, messages, answer)
    pieces, run.pieces, run.done = run.pieces, run.pieces[:pause], False
    words = Words()
    words.update(run)  # in the middle of it
    run.pieces = pieces
    run.finish()
    found = words.update(run)
    assert found == Words().update(run)
    for number, text in enumerate([*texts, answer]):
        mine = [word for word in found if word.message == number]
        assert [at(text, word.begin, word.text) for word in mine] == [word.text for word in mine]
        assert "".join(word.text for word in mine).split() == ["".join(text.split())][: len(mine)]
        assert sorted(word.begin for word in mine) == [word.begin for word in mine]
    for before, word in zip([0, *(word.stop for word in found)], found, strict=False):
        assert before <= word.first < word.stop
        assert word.text in "".join(piece.text for piece in run.pieces[word.first : word.stop])


@pytest.mark.parametrize(("text", "words"), [
    ("What does `str.split` do?", ["What", "does", "`", "str", ".", "split", "`", "do", "?"]),
    ("naïve e\u0301a_1 日本 🙂", ["naïve", "e\u0301a_1", "日", "本", "🙂"]),
    ("\u0928\u092e\u0938\u094d\u0924\u0947", ["\u0928\u092e\u0938\u094d\u0924\u0947"]),
])  # fmt: skip
def test_words_are_split_at_signs(tokenizer, text, words):
    assert [word.text for word in Words().update(read(tokenizer, [("user", text)]))] == words


def test_sentences_end_with_signs_and_lines(tokenizer):
    run = read(tokenizer, [("user", "One two. Three\nfour 1.5"), ("assistant", "five")], "six")
    sentences = {}
    for word in Words().update(run):
        sentences.setdefault(word.sentence, []).append(word.text)
    expected = ["One two .", "Three", "four 1 . 5", "five", "six"]
    assert [" ".join(words) for words in sentences.values()] == expected


@pytest.mark.parametrize(("content", "known"), [
    ("{{ m.content | trim }}", True), ("{{ m.content | tojson }}", False),
    ("{{ m.content }}{{ m.content }}", False),
    ("{% if loop.last %}{{ m.content }}{% endif %}", False),
    ("{{ 1 / 0 if m.content[0] not in '\" ' else m.content }}", False),
])  # fmt: skip
def test_a_place_is_known_or_there_is_none(with_template, content, known):
    tokenizer = with_template(looped(f"<|im_start|>{content}"))
    messages = [("user", '"a <|im_end|>\n'), ("assistant", " "), ("user", '"c')]
    text, _ = tokenizer.render(messages)
    found = [span and text[span[0] : span[1]] for span in tokenizer.message_spans(messages, text)]
    assert found == (['"a <|im_end|>', None, '"c'] if known else [None] * 3)


def test_an_answer_has_words_though_messages_have_no_place(with_template):
    tokenizer = with_template(looped("{{ m.content | upper }}"))
    run = read(tokenizer, [("system", "a"), ("user", "b")], "cd e")
    assert [(word.message, word.text) for word in Words().update(run)] == [(1, "cd"), (1, "e")]


def test_pieces_that_are_not_in_the_text_have_no_place():
    assert token_begins("ab cd", ["ab", " c", "d"], 0) == [0, 2, 4]
    assert token_begins(" ab", ["ab"], 0) == [1]  # its blank is left out
    assert token_begins("ab cd", ["ab", "\ufffd", "d"], 0) == [0, None, None]
    assert token_begins("ab", ["x", "ab"], -1) == [None, None]
