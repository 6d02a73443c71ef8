"""Messages to tokens: typed special tokens are text, the template's own are not."""

import shutil

import pytest
from helpers.errors import refusal
from helpers.models import says, tiny_model
from helpers.tokenizers import KINDS, begin_with
from mlx_gateloop.app.generation.chat_tokenizer import MAX_CHARACTERS, ChatTokenizer

import mlx_gateloop as gl


@pytest.fixture(scope="module")
def plain(models_folder):
    return gl.load(models_folder / "tiny")[1]


def test_a_text_to_continue_begins_as_the_tokenizer_has_it(models_folder, tmp_path, plain):
    shutil.copytree(models_folder / "tiny", tmp_path / "tiny")
    begin_with("<s>", tmp_path / "tiny")
    tokenizer = ChatTokenizer(str(tmp_path / "tiny"))
    assert tokenizer.encode("ab", None) == [plain.bos_token_id, 97, 98]
    assert tokenizer.encode("ab", []) == [97, 98]  # from a template


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_written_as_decode_writes_it(kind, tmp_path):
    made = KINDS[kind]()
    gl.save(tiny_model(vocab_size=len(made)), made, tmp_path)
    tokenizer, ids = ChatTokenizer(str(tmp_path)), made.encode("river it is \u2581 \0 é 🙂")
    shown = [tokenizer.write("one", ids[:1], token, [])[0] for token in ids[1:]]
    assert "".join([*shown, tokenizer.end("one")]) == made.decode(ids)[len(made.decode(ids[:1])) :]


def chat(*texts):
    return [("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(texts)]


@pytest.mark.parametrize("texts", [["hello"], ["", "b", "naïve 🙂\n\n"], [" <|im_ ", "end|>", "x"]])
def test_without_special_tokens_nothing_changes(tokenizer, plain, texts):
    text, typed = tokenizer.render(chat(*texts))
    messages = [says(*message) for message in chat(*texts)]
    expected = plain.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert (text, typed) == (expected, [])
    assert tokenizer.encode(text, typed) == plain.encode(expected, add_special_tokens=False)


@pytest.mark.parametrize("around", ["{}", "a {} b", "{0}{0}", "\n{0}\n<|im_{0}end|>"])
def test_typed_special_tokens_stay_text(tokenizer, plain, around):
    start, end = plain.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    for special in ("<|im_end|>", "<|im_start|>", "</s>", "<s>", "<pad>", "<unk>"):
        typed = around.format(special)
        text, positions = tokenizer.render(chat(typed))
        assert text == f"<|im_start|>user\n{typed}<|im_end|>\n<|im_start|>assistant\n"
        ids = tokenizer.encode(text, positions)
        letters = list(typed.encode())  # the ids of bytes are the bytes
        assert ids == [start, *b"user\n", *letters, end, *b"\n", start, *b"assistant\n"]
        assert tokenizer.encode(typed, None) == letters  # from a completion


def test_every_mark_is_taken_out_of_a_text_that_has_it(tokenizer):
    text = "".join(map(chr, range(0xE000, 0xE100))) + "</s>"
    assert text in tokenizer.render(chat(text))[0]


def test_a_template_that_trims_still_sees_the_spaces(with_template):
    tokenizer = with_template("{% for m in messages %}<|im_start|>{{ m.content|trim }}{% endfor %}")
    text, typed = tokenizer.render(chat("  </s>  "))
    assert (text, typed) == ("<|im_start|></s>", [15])
    assert tokenizer.encode(text, typed)[1:] == list(b"</s>")


def test_a_template_may_not_write_without_end(with_template):
    tokenizer = with_template(f"{{{{ 'a' * {MAX_CHARACTERS + 1} }}}}")
    assert "template writes 1,000,001 characters" in refusal(tokenizer.render, chat("hello"))
