"""What several tests of the converters need."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlx_gateloop.errors import InputError

SIZES = {"num_tokens": 262, "dim": 32, "depth": 2, "ff_mult": 2}  # as many tokens as `bytes` has


def problem(call: Callable[[], Any]) -> str:
    """The one line that a call says about wrong input."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


def torch_model(seed: int = 0, **options: Any) -> Any:
    """A model of gateloop-transformer with random weights, norms and biases included."""
    torch = pytest.importorskip("torch", reason="the source model is a torch module")
    transformer = pytest.importorskip("gateloop_transformer", reason="the source model's library")
    torch.manual_seed(seed)
    model = transformer.Transformer(**SIZES | options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    return model


def contents(path: Path) -> dict[str, bytes]:
    """Every file below a directory (or the file itself) with its bytes."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in files}
