"""From a training run to a directory of `app/embedded_models`: quantized, short log, hashes.

    python -m benchmarks.embedded_models.package runs/demo app/embedded_models/demo

The last directory is replaced if such a model is there. README.md, the model's card, is written
by hand: it stays, and has no hash. Of several runs, each tuned from the one before, it gets the
last one's weights, and the first one's log and configuration.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from mlx_gateloop.app.generation.files import SUMS

from mlx_gateloop.__main__ import main as gateloop
from mlx_gateloop.errors import InputError
from mlx_gateloop.io.files import sha256, staged
from mlx_gateloop.io.model_file import MODEL_FILE

from .arguments import check_own, errors_in_one_line, paths

BITS, GROUP = 8, 64
MAX_BYTES = 12_000_000  # per model
LOGGED = 50  # training records that are kept, beside every validation
CARD = "README.md"


def embed(runs: Sequence[Path], out: Path) -> None:
    """Quantize the last run's best weights into `out`; the state transitions stay float32."""
    run, last = runs[0], runs[-1]
    for file in (run / "config.yaml", run / "log.jsonl", last / "model.safetensors"):
        if not file.is_file():
            advice = "give the folder of a training run that has ended"
            raise InputError(f"{file.parent}: no {file.name}; {advice}")
    if not (out / SUMS).is_file():  # no model of ours, but its card may be there first
        check_own(out, CARD)
    with staged(out) as made:
        folders = ["--hf-path", str(last), "--mlx-path", str(made)]
        bits = ["-q", "--q-bits", str(BITS), "--q-group-size", str(GROUP)]
        if code := gateloop(["mlx-lm", "convert", *folders, *bits]):
            sys.exit(code)
        (made / CARD).unlink(missing_ok=True)  # mlx-lm's own
        (made / MODEL_FILE).unlink()  # a copy of standalone.py, for those without the package
        config = json.loads((made / "config.json").read_text("utf-8"))
        del config["model_file"]
        (made / "config.json").write_text(json.dumps(config, indent=4), "utf-8")
        pieces = made / "tokenizer.json"  # with its line breaks it takes thrice the bytes
        text = json.dumps(json.loads(pieces.read_text("utf-8")), ensure_ascii=False)
        pieces.write_text(text, "utf-8")
        shutil.copy(run / "config.yaml", made)
        (made / "log.jsonl").write_text(thinned((run / "log.jsonl").read_text()))
        if (out / CARD).exists():
            shutil.copy(out / CARD, made)
        (made / SUMS).write_text(sums(made))
        size = sum(file.stat().st_size for file in made.iterdir())
        if size > MAX_BYTES:
            raise InputError(f"{out}: {size:,} bytes exceed {MAX_BYTES:,}; train a smaller model")


def thinned(log: str) -> str:
    """Keep every validation, and evenly spaced training records."""
    lines = log.splitlines(keepends=True)
    training = [line for line in lines if "loss" in json.loads(line)]
    kept = set(training[-1 :: -max(1, -(-len(training) // LOGGED))])
    return "".join(line for line in lines if line in kept or "validation_loss" in json.loads(line))


def sums(directory: Path) -> str:
    """Return the lines of `sha256sum` for the files of a directory, except the card."""
    files = sorted(file for file in directory.iterdir() if file.name not in (SUMS, CARD))
    return "".join(f"{sha256(file)}  {file.name}\n" for file in files)


if __name__ == "__main__":
    with errors_in_one_line():
        *runs, model = paths(__doc__, "run", last="run_or_model")
        embed(runs, model)
