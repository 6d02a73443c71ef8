"""Everything that reads a file from elsewhere, and the files that are changed."""

import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from helpers.checkpoints import Hostile, save_shards, torch_model
from helpers.flax_model import jax_weights, packed
from helpers.models import save_tiny_model
from helpers.parity import paper_state
from helpers.records import trial_record
from helpers.tokenizers import trained_pieces
from helpers.training import model_and_optimizer
from mlx.utils import tree_unflatten
from mlx_gateloop.app.conversations import file as conversation_file
from mlx_gateloop.app.generation.models import Models
from mlx_gateloop.app.generation.prefix_cache import PrefixCache, PrefixState
from mlx_gateloop.convert.__main__ import main as convert
from mlx_gateloop.convert.tokenizer import load_tokenizer
from safetensors.numpy import save_file

from mlx_gateloop.data import load_corpus, pack
from mlx_gateloop.data.next_byte import next_byte
from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.experiments.tuning import chosen_in
from mlx_gateloop.io import models
from mlx_gateloop.tokenizer import byte_tokenizer, from_sentencepiece
from mlx_gateloop.train import TrainConfig, checkpoint

from .mutate import JSON, LINES, MSGPACK, SAFETENSORS, SENTENCEPIECE, ZIP, Codec


@dataclass(frozen=True)
class Target:
    prepare: Callable[[Path], object]  # fills a folder with good files; may return more of `file`
    file: str  # the one of them that is changed
    codec: Codec | None  # reads and writes what it means; None changes bytes alone
    read: Callable[[Path], object]  # raises InputError where the changed file cannot be used


def _configuration(folder):
    configuration = TrainConfig(steps=5).to_dict()
    configuration["model"] = {"preset": "demo", "hidden_size": 24, "dropout": 0.1}
    (folder / "run.yaml").write_text(json.dumps(configuration))  # JSON is YAML


def _model(folder):
    save_tiny_model(folder, chat=True)
    (folder / "special_tokens_map.json").write_text('{"eos_token": "</s>"}')


def _load(path):
    tokenizer = models.load(path.parent)[1]
    tokenizer.decode(tokenizer.encode("one text"))


def _text(folder):
    (folder / "text.txt").write_text("é\u2028 and more\n" * 9)


def _jsonl(folder):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    pair = {"prompt": "c", "completion": "d", "tools": [{"name": "e"}]}
    lines: list[object] = [{"text": "one"}, {"messages": turns}, {"text": "another"}, pair]
    (folder / "text.jsonl").write_text("\n".join(map(json.dumps, lines)))


def _read_corpus(path):
    corpus = load_corpus(str(path))
    tokenizer = byte_tokenizer()
    for part in (corpus.train, corpus.validation):
        pack([text[:1000] for text in part if isinstance(text, str)], tokenizer)


def _parquet(folder):
    import pyarrow
    from pyarrow import parquet

    for part in ("train", "validation", "test"):
        rows = pyarrow.table({"text": [" = Title = \n", "\n", f"the {part} part\n"] * 3})
        parquet.write_table(rows, folder / f"{part}-00000.parquet")


def _sentencepiece(folder):
    (folder / "pieces.model").write_bytes(trained_pieces(["one text", "and another text"] * 3, 275))


def _read_pieces(path):
    tokenizer = from_sentencepiece(path)
    tokenizer.decode(tokenizer.encode("one text"))


VOCABULARY = len(byte_tokenizer())


def _safetensors(folder):
    save_file(paper_state(VOCABULARY), folder / "weights.safetensors")


def _torch(folder):
    state = torch_model(dim=8, gate_loop_heads=2, sub_ln=True).state_dict()
    torch.save({"model": state, "step": 3}, folder / "weights.pt")
    hostile = io.BytesIO()
    torch.save({"a": Hostile(os.system, "touch ran")}, hostile)
    return [hostile.getvalue()]


def _legacy(folder):
    more, path = _torch(folder), folder / "weights.pt"
    torch.save(torch.load(path), path, _use_new_zipfile_serialization=False)
    return more


def _msgpack(folder):
    params = tree_unflatten(list(jax_weights(VOCABULARY).items()))
    (folder / "weights.msgpack").write_bytes(packed({"params": params}))


def _index(folder):
    weights = {n: torch.from_numpy(array) for n, array in paper_state(VOCABULARY).items()}
    save_shards(folder, weights, [i % 2 for i in range(len(weights))])


def _settings(folder):
    _torch(folder)
    (folder / "convert.yaml").write_text('{"ablate_complex": true, "tokenizer": "bytes"}')


def _convert(path):
    """Convert as the command does; an error is one line on stderr."""
    source = path.with_name("weights.pt") if path.suffix == ".yaml" else path
    out = path.parent / "out"
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        code = convert([str(source), str(out), "--tokenizer", "bytes"])
    if code == 2:
        message = errors.getvalue().removesuffix("\n")
        assert message.startswith("error: ")
        raise InputError(message)
    assert code == 0
    shutil.rmtree(out)


def _conversation(folder):
    _model(folder / "tiny")
    models, cache = Models([folder]), PrefixCache(10, 2**20)
    states = tuple(np.zeros((1, 1, 2, 8), np.float32) for _ in range(2))
    read = PrefixState((("user", "hello"),), "hello", (0, 1, 2), 1, states)
    cache.put("c", models.fingerprint("tiny"), read)
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    conversation_file.save(folder / "chat", "c", "tiny", messages, models, cache)


def _open(path):
    conversation_file.load(path, Models([path.parent]), PrefixCache(10, 2**20))


def _checkpoint(folder):
    progress = checkpoint.Progress(step=3)
    path = folder / "last.safetensors"
    checkpoint.save_checkpoint(path, *model_and_optimizer(), progress, {"seed": 1})


def _resume(path):
    path, progress, _ = checkpoint.read_newest(path)
    checkpoint.restore(path, *model_and_optimizer())
    assert isinstance(progress.step, int)


def _results(folder):
    """Results whose settings another experiment takes."""
    experiment = PRESETS["recall"]["small"].changed_by(models=["fixed"], trials=1)
    trials = {"fixed": [trial_record("fixed")]}
    tree = {"experiment": asdict(experiment), "models": {}, "trials": trials, "runs": []}
    (folder / "results.json").write_text(json.dumps(tree))


TARGETS = {
    "experiment": Target(_results, "results.json", JSON, lambda p: chosen_in(p.parent, "recall")),
    "configuration": Target(_configuration, "run.yaml", JSON, TrainConfig.load),
    "model-weights": Target(
        _model, "model.safetensors", SAFETENSORS, lambda path: models.load_model(path.parent)
    ),
    "load-config": Target(_model, "config.json", JSON, _load),
    "load-tokenizer": Target(_model, "tokenizer.json", JSON, _load),
    "load-tokenizer-config": Target(_model, "tokenizer_config.json", JSON, _load),
    "load-special-tokens": Target(_model, "special_tokens_map.json", JSON, _load),
    "load-generation-config": Target(_model, "generation_config.json", JSON, _load),
    "load-template": Target(_model, "chat_template.jinja", None, _load),
    "text": Target(_text, "text.txt", None, _read_corpus),
    "jsonl": Target(_jsonl, "text.jsonl", LINES, _read_corpus),
    "parquet": Target(_parquet, "train-00000.parquet", None, lambda p: _read_corpus(p.parent)),
    "next-byte": Target(_text, "text.txt", None, lambda path: next_byte(str(path), length=8)),
    "sentencepiece": Target(_sentencepiece, "pieces.model", SENTENCEPIECE, _read_pieces),
    "converted-tokenizer": Target(
        _model, "tokenizer.json", JSON, lambda path: load_tokenizer(str(path), path.parent, 300)
    ),
    "safetensors": Target(_safetensors, "weights.safetensors", SAFETENSORS, _convert),
    "torch": Target(_torch, "weights.pt", ZIP, _convert),
    "torch-legacy": Target(_legacy, "weights.pt", None, _convert),
    "msgpack": Target(_msgpack, "weights.msgpack", MSGPACK, _convert),
    "index": Target(_index, "model.safetensors.index.json", JSON, _convert),
    "settings": Target(_settings, "convert.yaml", JSON, _convert),
    "conversation": Target(_conversation, "chat", SAFETENSORS, _open),
    "checkpoint": Target(_checkpoint, "last.safetensors", SAFETENSORS, _resume),
}
