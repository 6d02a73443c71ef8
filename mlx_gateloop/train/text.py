"""Text as the source of a run: from a corpus to token streams and their batches."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from mlx_gateloop.data import Batches, Document, load_corpus, num_bytes, pack, texts
from mlx_gateloop.data.packing import DocumentBatches
from mlx_gateloop.distributed.world import World
from mlx_gateloop.errors import InputError
from mlx_gateloop.io import models as io
from mlx_gateloop.model.lm import Model
from mlx_gateloop.tokenizer import (
    CHAT_TEMPLATE,
    TURN_END,
    byte_tokenizer,
    from_sentencepiece,
    largest_id,
    train_tokenizer,
)
from mlx_gateloop.train.config import TokenizerConfig, TrainConfig
from mlx_gateloop.train.evaluate import Evaluation, evaluate
from mlx_gateloop.train.lora import save_lora
from mlx_gateloop.train.samples import first_prompt, half_lives, sample

MAX_IDS = 1 << 22  # in a tokenizer; large ones have 2^18


class TextSource:
    """A corpus as the source of a run, see `setup.Source`."""

    def __init__(self, config: TrainConfig, data: str, saved: Path | None) -> None:
        corpus = load_corpus(data, config.data.validation_fraction)
        tokenizer = _make_tokenizer(config.tokenizer, corpus.train, saved)
        if tokenizer.eos_token_id is None:
            raise InputError("this tokenizer has no end-of-text token (eos_token); use another one")
        if config.weights is None:
            _set_chat_template(tokenizer, [*corpus.train, *corpus.validation])
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
        if len(validation.tokens) < 2:
            raise InputError(
                "the validation text has fewer than two tokens; raise data.validation_fraction "
                f"({config.data.validation_fraction}) or give more text"
            )
        self._tokenizer, self._validation = tokenizer, validation
        self._validation_bytes = num_bytes(corpus.validation, answers)
        self.vocab_size = largest_id(tokenizer) + 1
        if self.vocab_size > MAX_IDS:
            given = f"this tokenizer has ids to {self.vocab_size - 1:,}, for a row each"
            raise InputError(f"{given}; use one with fewer than {MAX_IDS:,}")
        if config.model_args(self.vocab_size).outputs != self.vocab_size:
            raise InputError(
                f"model.num_outputs: must be the tokenizer's {self.vocab_size} tokens; omit it"
            )
        digest = hashlib.sha256()  # it changes with the text and with the tokenizer
        for stream in (training, validation):
            digest.update(f"{stream.tokens.dtype} {len(stream.tokens)}\n".encode())
            for array in (stream.tokens, stream.starts, stream.asked):
                digest.update(b"" if array is None else array.tobytes())
        self.sha256 = digest.hexdigest()
        self.summary = f"{len(training.tokens):,} tokens of training text"

    def evaluate(self, model: Model, world: World) -> Evaluation:
        data, carry = self._config.data, self._config.carry_state
        sizes = self._validation_bytes, data.length, data.batch_size, None
        return evaluate(model, self._validation, *sizes, carry, world, self._pieces)

    def glimpse(self, model: Any) -> dict[str, Any]:
        if not (count := self._config.sample_tokens):
            return {}
        was_training = model.training
        model.eval()
        text = sample(model, self._tokenizer, self._prompt, count)
        seen = {"sample": text, "half_lives": half_lives(model, self._validation.tokens)}
        model.train(was_training)
        return seen

    def save(self, model: Model, directory: Path) -> None:
        if (rank := self._config.lora_rank) is None:
            io.save(model, self._tokenizer, directory)
        else:
            save_lora(model, self._tokenizer, rank, directory)


def _make_tokenizer(config: TokenizerConfig, documents: list[Document], saved: Path | None) -> Any:
    if saved is not None:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(saved)
        for key in ("is_local", "local_files_only"):  # or they would be saved with it
            tokenizer.init_kwargs.pop(key, None)
        return tokenizer
    if config.kind == "bytes":
        return byte_tokenizer()
    if config.kind == "sentencepiece":
        return train_tokenizer(texts(documents), config.vocab_size)
    path = str(config.path)
    if path.endswith(".model"):
        return from_sentencepiece(path)
    from transformers import AutoTokenizer  # imports PyTorch if there is one

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
