"""Text as the source of a run: token streams, their batches, and samples of the model."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.nn as nn
import numpy as np
from transformers import PreTrainedTokenizerFast

from mlx_gateloop.data import Batches, Document, load_corpus, num_bytes, pack, texts
from mlx_gateloop.data.documents import Conversation
from mlx_gateloop.data.packing import DocumentBatches
from mlx_gateloop.distributed.world import World
from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling, stream
from mlx_gateloop.io import models as io
from mlx_gateloop.model.layers import evaluating
from mlx_gateloop.model.lm import Model
from mlx_gateloop.tokenizer import (
    CHAT_TEMPLATE,
    TURN_END,
    byte_tokenizer,
    from_sentencepiece,
    largest_id,
    stop_token_ids,
    train_tokenizer,
)
from mlx_gateloop.train.config import TokenizerConfig, TrainConfig
from mlx_gateloop.train.evaluate import Evaluation, evaluate
from mlx_gateloop.train.lora import save_lora
from mlx_gateloop.watch import trace_of

MAX_IDS = 1 << 22  # in a tokenizer; large ones have 2^18
LONGEST = 1e9  # tokens; an infinite half-life is not JSON
READ = 256  # tokens of text in which half-lives are measured


class TextSource:
    """A corpus as the source of a run, see `setup.Source`."""

    def __init__(self, config: TrainConfig, data: str, saved: Path | None) -> None:
        corpus = load_corpus(data, config.data.validation_fraction)
        tokenizer = _make_tokenizer(config.tokenizer, corpus.train, saved)
        if tokenizer.eos_token_id is None:
            raise InputError("this tokenizer has no end-of-text token (eos_token); use another one")
        documents = [*corpus.train, *corpus.validation]
        if config.lora_rank is None:  # adapters are used with the tokenizer of their base
            _set_chat_template(tokenizer, documents, keep=config.weights is not None)
        self._config, answers = config, config.data.loss_on == "answers"
        streams = [pack(part, tokenizer, answers) for part in (corpus.train, corpus.validation)]
        if not config.data.reset_at_documents:
            streams = [replace(stream, starts=None) for stream in streams]
        training, validation = streams
        shape = config.data.batch_size, config.data.length, config.seed
        self.batches: Batches | DocumentBatches
        if config.data.packed:
            self.batches = Batches(training, *shape, config.carry_state)
            self._pieces = None
        else:
            self.batches, self._pieces = (DocumentBatches(stream, *shape) for stream in streams)
        self._prompt = first_prompt(corpus.validation)
        self._tokenizer, self._validation = tokenizer, validation
        self._stops = stop_token_ids(tokenizer)
        if config.weights is not None:  # its config may name more, such as the end of a turn
            from mlx_lm.utils import load_config

            named = load_config(Path(config.weights)).get("eos_token_id")
            self._stops += named if isinstance(named, list) else [named] * (named is not None)
        self._validation_bytes = num_bytes(corpus.validation, answers)
        if self._pieces and not answers:  # the first token of each document is no target
            at = slice(1) if validation.starts is None else validation.starts
            texts = (tokenizer.decode([i], skip_special_tokens=True) for i in validation.tokens[at])
            # A part of a letter is a byte, but for the long ones of byte-level vocabularies.
            self._validation_bytes -= sum("\ufffd" in t or len(t.encode()) for t in texts)
        if len(validation.tokens) < 2 or not self._validation_bytes:
            fraction = f"raise data.validation_fraction ({config.data.validation_fraction})"
            advice = f"{fraction} or give more {'answers' if answers else 'text'}"
            raise InputError(f"the validation text has nothing to predict; {advice}")
        self.vocab_size = largest_id(tokenizer) + 1
        if self.vocab_size > MAX_IDS:
            given = f"this tokenizer has ids to {self.vocab_size - 1:,}, for a row each"
            raise InputError(f"{given}; use one with fewer than {MAX_IDS:,}")
        if config.model_args(self.vocab_size).outputs != self.vocab_size:
            expected = f"must be the tokenizer's {self.vocab_size} tokens"
            raise InputError(f"model.num_outputs or model.vocab_size: {expected}; omit it")
        digest = hashlib.sha256()  # it changes with the text and with the tokenizer
        for part in (training, validation):
            digest.update(f"{part.tokens.dtype} {len(part.tokens)}\n".encode())
            for array in (part.tokens, part.starts, part.asked):
                digest.update(b"" if array is None else array.tobytes())
        self.sha256 = digest.hexdigest()
        self.summary = f"{len(training.tokens):,} tokens of training text"

    def evaluate(self, model: Model, world: World) -> Evaluation:
        data, carry = self._config.data, self._config.carry_state
        sizes = self._validation_bytes, data.length, data.batch_size, None
        return evaluate(model, self._validation, *sizes, carry, world, self._pieces)

    def glimpse(self, model: Any) -> dict[str, Any]:
        with evaluating(model):
            seen = {"half_lives": half_lives(model, self._validation.tokens)}
            if not (count := self._config.sample_tokens):
                return seen
            tokenizer, sampling = self._wrapped(), Sampling(seed=0)
            try:
                drawn = "".join(stream(model, tokenizer, self._prompt, sampling, max_tokens=count))
            except InputError as error:  # its chat template may refuse a prompt without an answer
                drawn = f"none: {error}"
            return {"sample": drawn} | seen

    def save(self, model: Model, directory: Path) -> None:
        if (rank := self._config.lora_rank) is None:
            io.save(model, self._wrapped() if self._config.weights else self._tokenizer, directory)
        else:
            save_lora(model, self._tokenizer, rank, directory)

    def _wrapped(self) -> Any:
        """Wrap the tokenizer with the tokens that end an answer."""
        from mlx_lm.tokenizer_utils import TokenizerWrapper

        return TokenizerWrapper(self._tokenizer, eos_token_ids=self._stops)


def _make_tokenizer(config: TokenizerConfig, documents: list[Document], saved: Path | None) -> Any:
    if saved is not None:
        with io.refusing(str(saved), "its tokenizer cannot be loaded"):
            tokenizer = PreTrainedTokenizerFast.from_pretrained(saved)
    elif config.kind == "bytes":
        return byte_tokenizer()
    elif config.kind == "sentencepiece":
        return train_tokenizer(texts(documents), config.vocab_size)
    elif (path := str(config.path)).endswith(".model"):
        return from_sentencepiece(path)
    else:
        from transformers import AutoTokenizer  # imports PyTorch if there is one

        with io.refusing(f"tokenizer.path {path}", "cannot be loaded"):
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    for key in ("is_local", "local_files_only"):  # or they would be saved with it
        tokenizer.init_kwargs.pop(key, None)
    return tokenizer


def _set_chat_template(tokenizer: Any, documents: list[Document], keep: bool) -> None:
    """Give the tokenizer a chat template if the text has conversations, or `keep` its own."""
    if all(isinstance(document, str) for document in documents):
        tokenizer.chat_template = tokenizer.chat_template if keep else None
    elif tokenizer.chat_template is None and TURN_END in tokenizer.get_vocab():
        tokenizer.chat_template = CHAT_TEMPLATE


def first_prompt(documents: Sequence[Document]) -> Any:
    """Return what comes before the first answer; the beginning of a text is empty."""
    if not documents or isinstance(documents[0], str):
        return ""
    roles = [turn["role"] for turn in documents[0]]
    if "assistant" not in roles[1:]:
        return ""
    before = documents[0][: roles.index("assistant", 1)]
    return Conversation(before, getattr(documents[0], "tools", None))


def half_lives(model: nn.Module, tokens: np.ndarray) -> list[float]:
    """Compute each layer's median half-life over its channels, in tokens of a text."""
    if not isinstance(model, Model):
        return []
    trace = trace_of(model, tokens[:READ])
    rates = [np.median(trace.rate(layer).mean(0)) for layer in range(trace.layers)]
    return [float(min(LONGEST, math.log(2) / max(rate, 1e-12))) for rate in rates]
