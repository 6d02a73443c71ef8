import copy
import io

import pytest
import sentencepiece
from helpers.tokenizers import KINDS, TEXT
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from transformers import AutoTokenizer

from mlx_gateloop.errors import InputError
from mlx_gateloop.tokenizer import (
    CHAT_TEMPLATE,
    TextStream,
    byte_tokenizer,
    from_sentencepiece,
    stop_token_ids,
    token_texts,
    train_tokenizer,
)

AWKWARD = [
    "",
    " ",
    "   leading and trailing   ",
    "\u2581 and a\u2581b",
    "nul \0 bell \x07",
    "\ufffd \ufeff \u0301",
    "<s></s><|im_end|><unk><pad>",
    "<0x41><0x0A>",
    "\r\n\r",
    "🙂👩‍👩‍👧 العربية हिन्दी",
    "x" * 5000,
]


@pytest.fixture(scope="module", params=["bpe", "bytes"])
def tokenizer(request):
    return train_tokenizer([TEXT], 400) if request.param == "bpe" else byte_tokenizer()


def ids_of(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)


@pytest.fixture(scope="module", params=KINDS)
def any_tokenizer(request):
    return KINDS[request.param]()


@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_texts_come_back_and_make_no_special_tokens(tokenizer, text):
    ids = ids_of(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert set(ids).isdisjoint(tokenizer.all_special_ids)


@settings(max_examples=300, deadline=None)
@given(text=st.text())
def test_any_text_comes_back(tokenizer, text):
    assert tokenizer.decode(ids_of(tokenizer, text)) == text


@settings(max_examples=100, deadline=None)
@given(
    text=st.text(
        st.sampled_from(" river it's \n\0é数🙂\u2581\ufffd") | st.characters(codec="utf-8")
    ),
    data=st.data(),
)
def test_a_continuation_is_streamed_as_decode_writes_it(any_tokenizer, text, data):
    ids = any_tokenizer.encode(text + "river it is", add_special_tokens=False)
    whole = [n for n in range(len(ids)) if not any_tokenizer.decode(ids[:n]).endswith("\ufffd")]
    known = data.draw(st.sampled_from(whole))
    stream = TextStream(any_tokenizer, ids[:known])
    shown = "".join(map(stream.add, ids[known:])) + stream.end()
    assert any_tokenizer.decode(ids[:known]) + shown == any_tokenizer.decode(ids)


@settings(max_examples=50, deadline=None)
@given(ids=st.lists(st.integers(0, 255)))
def test_any_tokens_are_streamed(any_tokenizer, ids):
    ids = [token for token in ids if token < len(any_tokenizer)]
    assert len(token_texts(any_tokenizer, ids)) == len(ids)


def test_multi_byte_characters_are_not_streamed_in_pieces(any_tokenizer):
    texts = token_texts(any_tokenizer, ids_of(any_tokenizer, "→🙂ж"))
    assert [text for text in texts if text] in (["→", "🙂", "ж"], ["?", " ?"])  # unknown words


def test_the_saved_directory_reads_back_equal(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"tokenizer.json", "tokenizer_config.json"}
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again.encode(TEXT) == tokenizer.encode(TEXT)
    assert again.eos_token_id == tokenizer.eos_token_id


def test_encoding_adds_no_tokens_by_default(tokenizer):
    assert tokenizer.encode("state") == ids_of(tokenizer, "state")


def test_chat_template(tokenizer):
    assert tokenizer.chat_template is None  # until the text has conversations
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = CHAT_TEMPLATE
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    start, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert ids.count(start) == ids.count(end) == 2  # the markers are single tokens
    assert stop_token_ids(tokenizer) == [tokenizer.eos_token_id, end]


def trained(lines):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        minloglevel=2,
    )
    return model.getvalue()


def test_ids_are_sentencepieces_own(tmp_path):
    lines = [line for line in TEXT.split("\n") if line]
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained(lines))
    ours = from_sentencepiece(path)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    for line in [*lines, "unseen Wörter, 1984!", "stateful gating loops"]:
        assert ids_of(ours, line) == theirs.encode(line)


def test_models_that_change_text_are_refused_with_the_reason(tmp_path):
    path = tmp_path / "prefixed.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT.split("\n")),
            model_writer=file,
            model_type="bpe",
            vocab_size=200,
            minloglevel=2,
        )
    with pytest.raises(
        InputError, match="it would change text; train it with byte_fallback=true, "
    ):
        from_sentencepiece(path)


def test_training_is_deterministic_and_compresses():
    first, second = (train_tokenizer([TEXT], 400) for _ in range(2))
    assert first.get_vocab() == second.get_vocab()
    assert len(ids_of(first, TEXT)) < 0.5 * len(TEXT.encode())


def test_more_entries_than_the_text_supports_give_fewer():
    tokenizer = train_tokenizer(["abab abab"], 5000)
    assert 262 < len(tokenizer) < 300


def test_more_characters_than_entries_fall_back_to_bytes():
    text = "".join(map(chr, range(0x4E00, 0x5E00))) + TEXT
    tokenizer = train_tokenizer([text], 300)
    assert len(tokenizer) <= 300
    assert tokenizer.decode(ids_of(tokenizer, text)) == text


def test_no_piece_can_be_taken_for_a_byte_or_a_space():
    tokenizer = train_tokenizer(["<0x41>\u2581b " * 500], 280)
    pieces = list(tokenizer.get_vocab())
    assert sum(piece.startswith("<0x") for piece in pieces) == 256
    assert not any("\u2581" in piece for piece in pieces)


@pytest.mark.parametrize(
    ("texts", "size", "message"),
    [(["some text"], 200, "vocab_size: 200"), ([], 400, "no text"), (["\n\n"], 400, "no text")],
)
def test_training_on_too_little(texts, size, message):
    with pytest.raises(InputError, match=message):
        train_tokenizer(texts, size)


def test_files_that_are_no_such_model(tmp_path):
    broken = tmp_path / "broken.model"
    broken.write_bytes(b"\xff not a model")
    with pytest.raises(InputError, match=r"broken\.model: "):
        from_sentencepiece(broken)
    with pytest.raises(InputError, match=r"missing\.model: No such file"):
        from_sentencepiece(tmp_path / "missing.model")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda proto: setattr(proto.trainer_spec, "bos_id", 10**6), "damaged: list index"),
        (lambda proto: setattr(proto.pieces[300], "piece", "x" * 513), "a piece of 513 characters"),
    ],
    ids=["special", "long"],
)
def test_a_damaged_model_is_refused_in_one_line(tmp_path, change, message):
    proto = sentencepiece_model_pb2.ModelProto.FromString(trained(TEXT.split("\n")))
    change(proto)
    path = tmp_path / "damaged.model"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match=rf"damaged\.model: {message}"):
        from_sentencepiece(path)


def test_pieces_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "damaged.model"
    content = trained(TEXT.split("\n"))
    assert b"<s>" in content
    path.write_bytes(content.replace(b"<s>", b"\xff" * 3))
    with pytest.raises(InputError, match=r"damaged\.model: ") as caught:
        from_sentencepiece(path)
    assert "\n" not in str(caught.value)
