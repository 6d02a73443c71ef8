"""Many clients of `gateloop mlx-lm server`: `python benchmarks/serving.py --requests 1000`.

Completions and chats, streamed and whole, with prompts in the cache, and clients that leave. Every
answer is compared with that of a single run. Ends with 1 if one differs or is missing, if the
server does not answer at the end, or if its memory in the last quarter of the requests is a quarter
above that in the second one.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import mlx.core as mx

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from helpers.mlx_lm_commands import printable, saved
from helpers.mlx_lm_server import Clients, Single, serving
from helpers.models import chat_tokenizer
from helpers.recurrent import save_recurrent_model

from mlx_gateloop.io.tables import name_value_lines


def save_llama(path: Path) -> None:
    """Save a llama of mlx-lm that answers in printable characters, as a control."""
    sizes = {"max_position_embeddings": 32768, "tie_word_embeddings": False}
    weights = mx.load(str(save_recurrent_model(path, "llama", **sizes) / "model.safetensors"))
    # No head bias here: words that are not printable get no logit at all.
    weights["lm_head.weight"] *= mx.where(printable(chat_tokenizer()), 1, 0)[:, None]
    mx.eval(weights)
    mx.save_safetensors(str(path / "model.safetensors"), weights, {"format": "mlx"})


def main() -> int:
    """Run the requests; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a directory, or `llama`; default: a tiny GateLoop model")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "model"
        if arguments.model is None:
            saved(made, output_gate=True)
        elif arguments.model == "llama":
            save_llama(made)
        else:
            made = Path(arguments.model)
        single = Single(made)
        with serving(made, Path(folder) / "log") as server:
            clients = Clients(server, single, arguments.seed)
            began = time.perf_counter()
            clients.run(arguments.requests, arguments.clients)
            seconds = time.perf_counter() - began
            healthy = server.is_healthy()
    quarter = max(1, len(clients.memory) // 4)
    second, last = (median(clients.memory[n * quarter :][:quarter]) for n in (1, 3))
    kinds = ", ".join(f"{count} {kind}" for kind, count in clients.counts.most_common())
    lines = {
        "requests": kinds,
        "wrong or missing": str(len(clients.wrong)),
        "prompts in the cache": str(clients.cached),
        "memory": f"{second / 1e6:.0f} MB in the second quarter, {last / 1e6:.0f} MB in the last",
        "healthy at the end": str(healthy),
        "seconds": f"{seconds:.0f}",
    }
    print(name_value_lines(lines))
    print(*clients.wrong[:10], sep="\n")
    return int(bool(clients.wrong) or not healthy or last > 1.25 * second)


if __name__ == "__main__":
    sys.exit(main())
