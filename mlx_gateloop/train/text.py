"""Text as the source of a run: from a corpus to token streams and their batches."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mlx_gateloop.data import Batches, Document, encode, load_corpus, num_bytes, texts
from mlx_gateloop.distributed.world import World
from mlx_gateloop.errors import InputError
from mlx_gateloop.io import models as io
from mlx_gateloop.model.lm import Model
from mlx_gateloop.tokenizer import (
    CHAT_TEMPLATE,
    TURN_END,
    byte_tokenizer,
    from_sentencepiece,
    train_tokenizer,
)
from mlx_gateloop.train.config import TokenizerConfig, TrainConfig
from mlx_gateloop.train.evaluate import Evaluation, evaluate


@dataclass(frozen=True)
class Text:
    """The text of a run, encoded.

    Args:
        tokenizer: the tokenizer that encoded it.
        training: `[N]` token ids.
        validation: `[M]` token ids.
        validation_bytes: UTF-8 bytes of the validation text.
    """

    tokenizer: Any
    training: np.ndarray
    validation: np.ndarray
    validation_bytes: int

    @property
    def sha256(self) -> str:
        """A fingerprint of both streams, which changes with the text and with the tokenizer."""
        digest = hashlib.sha256()
        for stream in (self.training, self.validation):
            digest.update(f"{stream.dtype} {len(stream)}\n".encode())
            digest.update(stream.tobytes())
        return digest.hexdigest()


class TextSource:
    """A corpus as the source of a run, see `train.data`.

    Args:
        config: the run.
        data: see `data.load_corpus`.
        saved: a directory with the tokenizer of the run to resume; None makes a new one.

    Raises:
        InputError: no usable text, or too little of it.
    """

    def __init__(self, config: TrainConfig, data: str, saved: Path | None) -> None:
        self._data = config.data
        self._text = text = prepare_text(config, data, saved)
        length, batch_size = self._data.length, self._data.batch_size
        self.batches = Batches(text.training, batch_size, length, seed=config.seed)
        if len(text.validation) < 2:
            raise InputError(
                "the validation text has fewer than two tokens; raise data.validation_fraction "
                f"({self._data.validation_fraction}) or give more text"
            )
        self.vocab_size = len(text.tokenizer.get_vocab())
        if config.model_args(self.vocab_size).outputs < self.vocab_size:
            raise InputError(
                f"model.num_outputs: at least the tokenizer's {self.vocab_size} tokens; omit it"
            )
        self.sha256 = text.sha256
        self.summary = f"{len(text.training):,} tokens of training text"

    def evaluate(self, model: Model, world: World) -> Evaluation:
        text, data = self._text, self._data
        sizes = text.validation_bytes, data.length, data.batch_size
        return evaluate(model, text.validation, *sizes, world=world)

    def save(self, model: Model, directory: Path) -> None:
        io.save(model, self._text.tokenizer, directory)


def prepare_text(config: TrainConfig, source: str, saved: Path | None) -> Text:
    """Load and encode a corpus.

    Args:
        config: the run.
        source: see `data.load_corpus`.
        saved: a directory with the tokenizer of the run to resume; None makes a new one.
    """
    corpus = load_corpus(source, config.data.validation_fraction)
    if saved is None:
        tokenizer = _make_tokenizer(config.tokenizer, corpus.train)
    else:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(saved)
        for key in ("is_local", "local_files_only"):  # or they would be saved with it
            tokenizer.init_kwargs.pop(key, None)
    _set_chat_template(tokenizer, [*corpus.train, *corpus.validation])
    return Text(
        tokenizer,
        encode(corpus.train, tokenizer),
        encode(corpus.validation, tokenizer),
        num_bytes(corpus.validation),
    )


def _make_tokenizer(config: TokenizerConfig, documents: list[Document]) -> Any:
    if config.kind == "bytes":
        return byte_tokenizer()
    if config.kind == "sentencepiece":
        return train_tokenizer(texts(documents), config.vocab_size)
    path = str(config.path)
    if path.endswith(".model"):
        return from_sentencepiece(path)
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"tokenizer.path {path}: cannot be loaded ({reason})") from None


def _set_chat_template(tokenizer: Any, documents: list[Document]) -> None:
    """Give the tokenizer a chat template if the text has conversations, and none otherwise."""
    if all(isinstance(document, str) for document in documents):
        tokenizer.chat_template = None
    elif tokenizer.chat_template is None and TURN_END in tokenizer.get_vocab():
        tokenizer.chat_template = CHAT_TEMPLATE
