"""From a source of text to the token streams of a run."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mlx_gateloop.data import Document, encode, load_corpus, num_bytes, texts
from mlx_gateloop.errors import InputError
from mlx_gateloop.tokenizer import byte_tokenizer, from_sentencepiece, train_tokenizer
from mlx_gateloop.train.config import TokenizerConfig, TrainConfig


@dataclass(frozen=True)
class Text:
    """The text of a run, encoded.

    Args:
        tokenizer: what encoded it.
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
        """A fingerprint of both streams: it changes with the text and with the tokenizer."""
        digest = hashlib.sha256()
        for stream in (self.training, self.validation):
            digest.update(f"{stream.dtype} {len(stream)}\n".encode())
            digest.update(stream.tobytes())
        return digest.hexdigest()


def prepare_text(config: TrainConfig, source: str, saved: Path | None) -> Text:
    """Load and encode a corpus.

    Args:
        source: see `data.load_corpus`.
        saved: a directory with the tokenizer of the run to resume; None makes a new one.
    """
    corpus = load_corpus(source, config.data.validation_fraction)
    if saved is None:
        tokenizer = _make_tokenizer(config.tokenizer, corpus.train)
    else:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(saved)
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
        raise InputError(f"tokenizer.path {path}: can't be loaded ({reason})") from None
