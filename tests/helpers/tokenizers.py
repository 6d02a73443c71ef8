"""Tokenizers of every kind that others make."""

import io
from functools import partial

import sentencepiece
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer, WordLevelTrainer
from transformers import PreTrainedTokenizerFast

from mlx_gateloop.tokenizer import byte_tokenizer, train_tokenizer

TEXT = "".join(
    f"The {word} of 19{i % 10}{i % 7} is   {word}ed,\n\tand {word}ing; naïve café, 数 {i}.\n"
    for i in range(60)
    for word in ("model", "state", "gate", "loop", "memory")
)


def other_tokenizer(kind):
    """A tokenizer as others make them, without special tokens."""
    made = Tokenizer({"word": WordLevel(unk_token="?"), "byte-level": BPE()}.get(kind, BPE()))
    alphabet = []
    if kind == "word":
        trainer = WordLevelTrainer(special_tokens=["?"])
        made.pre_tokenizer = pre_tokenizers.Whitespace()
    elif kind == "byte-level":
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        trainer = BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    else:  # Llama's, whose decoder takes the first blank away
        made = Tokenizer(BPE(unk_token="?", byte_fallback=True))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
        alphabet = ["?", *(f"<0x{i:02X}>" for i in range(256))]
        trainer = BpeTrainer(vocab_size=600, special_tokens=alphabet)
    made.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False)


def trained_pieces(lines, size=400, **options):
    """The file of a sentencepiece model that changes no text, unless the options say so."""
    model = io.BytesIO()
    options = {
        "byte_fallback": True, "normalization_rule_name": "identity", "add_dummy_prefix": False,
        "remove_extra_whitespaces": False, **options,
    }  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=size,
        minloglevel=2, hard_vocab_limit=False, **options,
    )  # fmt: skip
    return model.getvalue()


def begin_with(token, path):
    file = path / "tokenizer.json"
    made = Tokenizer.from_file(str(file))
    known = [(token, made.token_to_id(token))]
    made.post_processor = TemplateProcessing(single=f"{token} $A", special_tokens=known)
    made.save(str(file))


KINDS = {kind: partial(other_tokenizer, kind) for kind in ("word", "byte-level", "metaspace")}
KINDS |= {"sentencepiece": lambda: train_tokenizer([TEXT], 400), "bytes": byte_tokenizer}


def add_token(token, path):
    file = path / "tokenizer.json"
    made = Tokenizer.from_file(str(file))
    made.add_tokens([token])
    made.save(str(file))


def sparse_tokenizer(largest):
    """A tokenizer of words of which one has this id, and most ids have none."""
    made = Tokenizer(WordLevel({"?": 0, "a": 1, "b": 2, "</s>": 3, "c": largest}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", unk_token="?")
