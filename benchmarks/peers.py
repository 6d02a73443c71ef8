"""The tables of `gateloop bench`, with the peers that are installed.

    python -m benchmarks.peers ops --out results

takes the arguments of `gateloop bench`; `pip install -r requirements-bench.txt` gets the peers.
"""

import argparse
import sys
import warnings
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from mlx_gateloop.bench.measure import Candidate, Function, Run
from mlx_gateloop.bench.model import VOCABULARY, WIDTH
from mlx_gateloop.bench.ops import backends
from mlx_gateloop.bench.report import write_report
from mlx_gateloop.bench.train import CLIP_NORM, OPTIMIZER
from mlx_gateloop.commands import bench
from mlx_gateloop.commands.parser import Parser
from mlx_gateloop.io.machine import cores

Pair = tuple[Any, Any]  # arrays of jax or torch
Arrays = list[np.ndarray]


def jax_gate_loop(q: Any, k: Any, v: Any, gamma: Any, theta: Any) -> Any:
    """Compute the paper's operator."""
    import jax

    size = jax.nn.sigmoid(gamma)
    a = jax.lax.complex(size * jax.numpy.cos(theta), size * jax.numpy.sin(theta))
    return q * jax_states(a, (k * v).astype(a.dtype)).real


def jax_states(a: Any, x: Any) -> Any:
    """Scan h_n = a_n h_{n-1} + x_n by jax.lax.associative_scan."""
    import jax

    def combine(left: Pair, right: Pair) -> Pair:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return jax.lax.associative_scan(combine, (a, x), axis=1)[1]


def jax_candidate(function: Function, arrays: Arrays, cotangent: np.ndarray) -> Candidate:
    import jax

    forward = jax.jit(function)
    gradient = jax.jit(lambda dy, *xs: jax.vjp(function, *xs)[1](dy))
    dy, *xs = (jax.numpy.array(array) for array in (cotangent, *arrays))
    return Candidate(
        lambda: jax.block_until_ready(forward(*xs)),
        lambda: jax.block_until_ready(gradient(dy, *xs)),
        is_mlx=False,
    )


def torch_gate_loop(q: Any, k: Any, v: Any, gamma: Any, theta: Any) -> Any:
    """Compute the paper's operator by gateloop-transformer's scan."""
    import torch

    a = torch.polar(gamma.sigmoid(), theta)
    return q * torch_states(a, (k * v).to(a.dtype)).real


def torch_states(a: Any, x: Any) -> Any:
    """Scan h_n = a_n h_{n-1} + x_n by gateloop-transformer's code."""
    import torch
    from gateloop_transformer.associative_scan import associative_scan

    def combine(left: Pair, right: Pair) -> Pair:
        return left[0] * right[0], torch.addcmul(right[1], right[0], left[1])

    return associative_scan(combine, (a, x))[1]


def fla_gla(q: Any, k: Any, v: Any, gamma: Any) -> Any:
    """Run GLA's kernels, with heads; their products round float32 to TF32."""
    from fla.ops.gla import chunk_gla
    from torch.nn.functional import logsigmoid

    return chunk_gla(q, k, v, logsigmoid(gamma), scale=1.0)[0]


def torch_candidate(function: Function, arrays: Arrays, cotangent: np.ndarray) -> Candidate:
    import torch

    torch.set_num_threads(cores())
    device = "cuda" if "cuda" in backends() and torch.cuda.is_available() else "cpu"
    leaves = [torch.tensor(array, device=device, requires_grad=True) for array in arrays]
    dy = torch.tensor(cotangent, device=device)

    def wait_for(result: Any) -> Any:
        if device == "cuda":
            torch.cuda.synchronize()
        return result

    @torch.no_grad()
    def forward() -> Any:
        return wait_for(function(*leaves))

    def gradient() -> Any:
        return wait_for(torch.autograd.grad(function(*leaves), leaves, dy))

    return Candidate(forward, gradient, is_mlx=False)


def torch_prefill(tokens: np.ndarray) -> tuple[tuple[int, int], Run]:
    """Return parameters and layers, and the forward pass: the package has no cache."""
    import torch

    model, inputs = torch_model(WIDTH, 4, 2), torch.tensor(tokens)

    @torch.no_grad()
    def forward() -> Any:
        return model(inputs)

    return (num_parameters(model), len(model.layers)), forward


def torch_step(tokens: np.ndarray, width: int, depth: int) -> tuple[int, Run]:
    """Return parameters, and a training step, whose gradient computes the operator again."""
    import torch

    model, data = torch_model(width, depth, 3), torch.tensor(tokens)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        OPTIMIZER.learning_rate,
        betas=OPTIMIZER.betas,
        weight_decay=OPTIMIZER.weight_decay,
    )

    def step() -> None:
        optimizer.zero_grad()
        model(data, return_loss=True).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()

    return num_parameters(model), step


def torch_model(width: int, depth: int, ff_mult: int) -> Any:
    """gateloop-transformer's language model; its embedding and head are not shared."""
    import torch
    from gateloop_transformer import Transformer

    # The package leaves torch's option use_reentrant at its default, and torch warns.
    warnings.filterwarnings("ignore", message="torch.utils.checkpoint: the use_reentrant")
    torch.set_num_threads(cores())
    torch.manual_seed(0)
    return Transformer(dim=width, num_tokens=VOCABULARY, depth=depth, ff_mult=ff_mult)


def num_parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


TORCH = ("torch", "gateloop_transformer")
ASSOCIATIVE, SCAN = "jax.lax.associative_scan", "gateloop-transformer's scan (torch)"
FLA = "flash-linear-attention's chunk_gla"
PEERS: list[tuple[str, str, tuple[str, ...], Function]] = [  # table, row, packages, its candidate
    ("scan", ASSOCIATIVE, ("jax",), partial(jax_candidate, jax_states)),
    ("scan", SCAN, TORCH, partial(torch_candidate, torch_states)),
    ("operator", ASSOCIATIVE, ("jax",), partial(jax_candidate, jax_gate_loop)),
    ("operator", SCAN, TORCH, partial(torch_candidate, torch_gate_loop)),
    ("real heads", FLA, ("torch", "fla"), partial(torch_candidate, fla_gla)),
    ("model", "gateloop-transformer (torch)", TORCH, torch_prefill),
    ("train", "gateloop-transformer (torch)", TORCH, torch_step),
]


def rows(table: str, *inputs: Any) -> dict[str, Any]:
    """Return the rows that installed peers add to a table, as `measure.Others`."""
    return {
        row: candidate(*inputs)
        for of, row, packages, candidate in PEERS
        if of == table and all(map(find_spec, packages))
        if "fla" not in packages or "cuda" in backends()  # it needs Triton, so a GPU
    }


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    bench.add_arguments(parser)
    given = parser.parse_args()
    packages = {name for _, _, names, _ in PEERS for name in names if not find_spec(name)}
    print("not installed:", ", ".join(sorted(packages)) or "none", file=sys.stderr)
    write_report(given.what, given.quick, given.out, "python -m benchmarks.peers", rows)


if __name__ == "__main__":
    main()
