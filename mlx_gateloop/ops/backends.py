"""The backends that compute the scan, and the choice of one."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import mlx.core as mx

from mlx_gateloop.ops import cpu, plain
from mlx_gateloop.ops.checks import check_choice
from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.first_use import KernelError, warn_once
from mlx_gateloop.ops.planes import Planes
from mlx_gateloop.ops.scan import linear_recurrence

BackendName = Literal["auto", "mlx", "cpu", "metal", "cuda", "ops", "native"]
ALIASES = {"ops": "mlx", "native": "cpu"}
T = TypeVar("T")


class Backend(NamedTuple):
    """One implementation of the scan."""

    # h_n = a_n h_{n-1} + x_n; arguments and result as in `scan.linear_recurrence`
    scan: Callable[..., Planes]
    # called with `gate_loop`'s q, k, v, a, h0 (as many real arrays as a), mask and reverse
    operator: Callable[..., tuple[mx.array, mx.array]]
    # gives the reason in one line if this machine cannot use the backend, else None
    why_missing: Callable[[], str | None]


def _gpu(platform: str) -> Backend:
    return Backend(  # the kernels are built at the first call
        lambda *arguments: gpu.linear_recurrence(gpu.kernels(platform), *arguments),
        lambda *arguments: gpu.gate_loop(gpu.kernels(platform), *arguments),
        partial(gpu.why_missing, platform),
    )


BACKENDS = {
    "mlx": Backend(linear_recurrence, plain.gate_loop, lambda: None),
    "cpu": Backend(cpu.linear_recurrence, cpu.gate_loop, cpu.why_missing),
    "metal": _gpu("metal"),
    "cuda": _gpu("cuda"),
}


def choose(name: str) -> Backend:
    """Return the backend of this name; "auto" is the fastest for MLX's default device."""
    name = ALIASES.get(name, name)
    check_choice("backend", name, ("auto", *BACKENDS))
    if name == "auto":  # called for every layer and token: query no backend but the candidates
        candidates = ("cpu",) if mx.default_device().type == mx.cpu else ("metal", "cuda")
        found = (n for n in candidates if BACKENDS[n].why_missing() is None)
        return BACKENDS[next(found, "mlx")]
    if why := BACKENDS[name].why_missing():
        available = ", ".join(n for n, backend in BACKENDS.items() if not backend.why_missing())
        raise RuntimeError(f"backend {name!r} is missing: {why}; available: {available}")
    return BACKENDS[name]


def run_on(name: str, function: Callable[[Backend], T]) -> T:
    """Call `function` with a backend; warn once and use plain MLX if auto's GPU fails."""
    backend = choose(name)
    try:
        return function(backend)
    except KernelError as error:
        if name != "auto":
            raise
        warn_once(f"mlx_gateloop computes the scan in plain MLX: {error}")
        return function(BACKENDS["mlx"])
