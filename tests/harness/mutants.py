"""Kernels with one fault each, for tests that must notice it."""

from collections.abc import Callable
from pathlib import Path

from harness.kernel import Kernel, metal_kernel
from mlx_gateloop.ops.gpu import operator

DIRECTORY = Path(operator.__file__).parent


def mutated(file: str, old: str, new: str, count: int = 1) -> Callable[..., Kernel]:
    """A factory whose kernels have `new` for `old`, which must be in the file `count` times."""

    def factory(header: str, source: str, **names: object) -> Kernel:
        text = (DIRECTORY / file).read_text()
        assert text.count(old) == count, f"{file} has changed: {old}"
        header, source = (part.replace(text, text.replace(old, new)) for part in (header, source))
        return metal_kernel(header=header, source=source, **names)

    return factory
