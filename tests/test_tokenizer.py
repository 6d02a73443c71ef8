import copy
from unittest.mock import Mock

import pytest
import sentencepiece
from helpers.errors import refusal
from helpers.tokenizers import KINDS, TEXT, trained_pieces
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from mlx_gateloop.tokenizer import (
    CHAT_TEMPLATE,
    TextStream,
    byte_tokenizer,
    from_sentencepiece,
    stop_token_ids,
    template_ids,
    token_texts,
    train_tokenizer,
)

AWKWARD = [
    *("", " ", "   leading and trailing   ", "\u2581 and a\u2581b", "nul \0 bell \x07"),
    *("\ufffd \ufeff \u0301", "<s></s><|im_end|><unk><pad>", "<0x41><0x0A>", "\r\n\r"),
    *("🙂👩‍👩‍👧 العربية हिन्दी", "x" * 5000),
]
LETTERS = st.sampled_from(" river it's \n\0é数🙂\u2581\ufffd")


@pytest.fixture(scope="module", params=["bpe", "bytes"])
def tokenizer(request):
    return train_tokenizer([TEXT], 400) if request.param == "bpe" else byte_tokenizer()


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)


@pytest.fixture(scope="module", params=KINDS)
def any_tokenizer(request):
    return KINDS[request.param]()


def test_awkward_texts_come_back_and_make_no_special_tokens(tokenizer):
    for text in AWKWARD:
        ids = ids_of(tokenizer, text)
        assert tokenizer.decode(ids) == text
        assert set(ids).isdisjoint(tokenizer.all_special_ids)
    assert tokenizer.encode("state") == ids_of(tokenizer, "state")  # no token is added


@settings(max_examples=300)
@given(text=st.text())
def test_any_text_comes_back(tokenizer, text):
    assert tokenizer.decode(ids_of(tokenizer, text)) == text


@settings(max_examples=100)
@given(text=st.text(LETTERS | st.characters(codec="utf-8")), data=st.data())
def test_a_continuation_is_streamed_as_decode_writes_it(any_tokenizer, text, data):
    parts = text + data.draw(st.sampled_from("a\ufffd")), text[::-1] + "river it is"
    first, more = (ids_of(any_tokenizer, part) for part in parts)
    ids = first + more
    whole = [n for n in range(len(ids)) if not any_tokenizer.decode(ids[:n]).endswith("\ufffd")]
    known = data.draw(st.just(len(first)) | st.sampled_from(whole))
    stream = TextStream(any_tokenizer, ids[:known])
    shown = "".join(map(stream.add, ids[known:])) + stream.end()
    assert any_tokenizer.decode(ids[:known]) + shown == any_tokenizer.decode(ids)


@settings(max_examples=50)
@given(ids=st.lists(st.integers(0, 255)))
def test_any_tokens_are_streamed(any_tokenizer, ids):
    ids = [token for token in ids if token < len(any_tokenizer)]
    assert len(token_texts(any_tokenizer, ids)) == len(ids)


@pytest.mark.parametrize("text", [b"\x80", b"\xf0\x9f", "\ufffd".encode()])
def test_what_is_no_letter_is_streamed_in_time(tokenizer, text):
    ids = [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in text * 200]
    decoded = []
    decode = Mock(side_effect=lambda ids: decoded.append(len(ids)) or tokenizer.decode(ids))
    assert sum(map(bool, token_texts(Mock(wraps=tokenizer, decode=decode), ids))) > len(ids) / 9
    assert sum(decoded) < 50 * len(ids)


@given(parts=st.lists(st.sampled_from([b"\x99", b"\xc3", "é", "数🙂", "river ", "a", " "])))
def test_a_byte_of_no_letter_spoils_no_other(tokenizer, parts):
    byte = {b"\x99": "<0x99>", b"\xc3": "<0xC3>"}
    known = {part: [tokenizer.convert_tokens_to_ids(piece)] for part, piece in byte.items()}
    ids = [token for part in parts for token in known.get(part) or ids_of(tokenizer, part)]
    whole = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    assert "".join(token_texts(tokenizer, ids)) == whole.decode(errors="replace")


def test_multi_byte_characters_are_not_streamed_in_pieces(any_tokenizer):
    texts = token_texts(any_tokenizer, ids_of(any_tokenizer, "→🙂ж"))
    assert [text for text in texts if text] in (["→", "🙂", "ж"], ["?", " ?"])  # unknown words


def test_chat_template(tokenizer):
    assert tokenizer.chat_template is None  # until the text has conversations
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = CHAT_TEMPLATE
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    start, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert ids.count(start) == ids.count(end) == 2  # the markers are single tokens
    assert stop_token_ids(tokenizer) == [tokenizer.eos_token_id, end]


@given(
    text=st.lists(st.sampled_from(["<|im_end|>", "</s>", "<s>", "a", " b", "\n", "<"])).map("".join)
)
def test_special_tokens_in_messages_stay_text(tokenizer, text):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = CHAT_TEMPLATE
    special = {*tokenizer.all_special_ids}

    def encoded(content):
        call = {"role": "assistant", "tool_calls": [{"arguments": {"a": content}}]}
        tools = [{"name": content}]
        messages = [{"role": "user", "content": content}, call]
        ids = template_ids(tokenizer, messages, tools)
        written = tokenizer.apply_chat_template(messages, tools, tokenize=False)
        assert tokenizer.decode(ids) == written
        return [token for token in ids if token in special]

    ids = template_ids(tokenizer, [{"role": "user", "content": "</s>"}], [{"name": "\uac00"}])
    assert "\uac00" in tokenizer.decode(ids)  # the first mark that is tried
    tokenizer.chat_template = "{{ messages[0].content }}{{ tools }}"  # as Python writes it
    ids = template_ids(tokenizer, [{"role": "user", "content": (text,)}], [{"a": text}])
    assert tokenizer.decode(ids) == f"{[text]}{[{'a': text}]}"
    assert not special & {*ids}
    tokenizer.chat_template = CHAT_TEMPLATE
    assert encoded(text) == encoded("x")


def test_ids_are_sentencepieces_own(tmp_path):
    lines = [line for line in TEXT.split("\n") if line]
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained_pieces(lines))
    ours = from_sentencepiece(path)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    for line in [*lines, "unseen Wörter, 1984!", "stateful gating loops"]:
        assert ids_of(ours, line) == theirs.encode(line)
    assert len(from_sentencepiece(path, theirs.vocab_size())) == theirs.vocab_size()


def test_training_is_deterministic_and_compresses():
    first, second = (train_tokenizer([TEXT], 400) for _ in range(2))
    assert first.get_vocab() == second.get_vocab()
    assert len(ids_of(first, TEXT)) < 0.5 * len(TEXT.encode())


@pytest.mark.parametrize(
    ("text", "size", "least", "most"),
    [
        ("abab abab", 5000, 263, 299),  # more entries than the text supports
        ("".join(map(chr, range(0x4E00, 0x5E00))) + TEXT, 300, 263, 300),  # fewer than characters
        ("<0x41>\u2581b " * 500, 280, 263, 280),  # no piece is taken for a byte or a space
    ],
    ids=["short", "many characters", "reserved"],
)
def test_odd_texts_are_trained_on(text, size, least, most):
    tokenizer = train_tokenizer([text], size)
    pieces = list(tokenizer.get_vocab())
    assert least <= len(pieces) <= most
    assert tokenizer.decode(ids_of(tokenizer, text)) == text
    assert sum(piece.startswith("<0x") for piece in pieces) == 256
    assert not any("\u2581" in piece for piece in pieces)


@pytest.mark.parametrize(("texts", "size", "message"), [
    (["some text"], 200, "vocab_size: 200"), ([], 400, "no text"), (["\n\n"], 400, "no text"),
])  # fmt: skip
def test_training_on_too_little(texts, size, message):
    assert message in refusal(train_tokenizer, texts, size)


CHANGES_TEXT = {
    "byte_fallback": False, "normalization_rule_name": "nmt_nfkc",
    "remove_extra_whitespaces": True, "add_dummy_prefix": True,
}  # fmt: skip
BAD = {
    "text is changed": (
        lambda proto: trained_pieces(TEXT.split("\n"), 200, **CHANGES_TEXT),
        "it would change text; train it with byte_fallback=true, normalization_rule_name=identity, "
        "remove_extra_whitespaces=false, add_dummy_prefix=false",
    ),
    "no model": (lambda proto: b"\xff not a model", ""),
    "special": (lambda proto: setattr(proto.trainer_spec, "bos_id", 10**6), "damaged: list index"),
    "long": (lambda proto: setattr(proto.pieces[300], "piece", "x" * 513), "piece of 513 char"),
    "no text": (lambda proto: proto.SerializeToString().replace(b"<s>", b"\xff" * 3), ""),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_files_that_cannot_be_used_are_refused_in_one_line(tmp_path, change, message):
    path = tmp_path / "bad.model"
    assert "bad.model: No such file" in refusal(from_sentencepiece, path)
    proto = sentencepiece_model_pb2.ModelProto.FromString(trained_pieces(TEXT.split("\n")))
    path.write_bytes(change(proto) or proto.SerializeToString())
    line = refusal(from_sentencepiece, path)
    assert "bad.model: " in line
    assert message in line
