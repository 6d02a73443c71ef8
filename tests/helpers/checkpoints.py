"""Checkpoints and runs of the command, for the tests of the converters."""

import json

import pytest
from mlx_gateloop.convert.__main__ import main

from .commands import fails

BYTES = ["--tokenizer", "bytes"]
SIZES = {"num_tokens": 262, "dim": 32, "depth": 2, "ff_mult": 2}  # as many tokens as `bytes` has
torch = pytest.importorskip("torch", reason="PyTorch's files are written with torch")
FILES = {"README.md", "config.json", "gateloop.py", "generation_config.json", "model.safetensors"}
FILES |= {"tokenizer.json", "tokenizer_config.json"}


def state_of(module):
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def torch_model(seed=0, noise=0.2, **options):
    """A model of gateloop-transformer with random weights, norms and biases included."""
    transformer = pytest.importorskip("gateloop_transformer", reason="the source model's library")
    torch.manual_seed(seed)
    model = transformer.Transformer(**SIZES | options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += noise * torch.randn_like(parameter)
    return model


def save_shards(folder, tensors, shards):
    """Save tensors to as many files as there are different `shards`, with their index."""
    from safetensors.torch import save_file

    weight_map = {n: f"model-{shard}.safetensors" for n, shard in zip(tensors, shards, strict=True)}
    for file in set(weight_map.values()):
        part = {n: tensor.contiguous() for n, tensor in tensors.items() if weight_map[n] == file}
        save_file(part, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


class Hostile:
    """Pickled, it calls a function when it is read."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        function, *arguments = self.call
        return function, tuple(arguments)


def contents(path):
    """Every file below a directory (or the file itself) with its bytes."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in files}


def run(*words):
    return main([str(word) for word in words])


def refused(capsys, *words):
    return fails(capsys, "convert", *map(str, words))


def old_model(out):
    """A directory that holds some model, and what is in it."""
    out.mkdir()
    (out / "config.json").write_text('{"model_type": "gateloop"}')
    (out / "model.safetensors").write_bytes(b"precious")
    return contents(out)
