"""A model as one HTML file, which runs it without a server and without the network."""

import base64
import os
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mlx_gateloop.configuration import read_json
from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.io.model_file import PACKAGE_ONLY
from mlx_gateloop.io.models import OUR_CODE, load, model_directory
from mlx_gateloop.model.arguments import GATED
from mlx_gateloop.model.lm import Model, ModelArgs
from mlx_gateloop.tokenizer import stop_token_ids
from mlx_gateloop.watch.sharing import HIGH, LOW, filled, inserted, part, script_of

FORMAT, VERSION = "gateloop-page", 1  # as in live.js
# Each file imports only from earlier ones.
SCRIPTS = ("colours.js", "data.js", "plain.js", "play.js", "view.js", "live.js")
WORKER = ("model.js", "tokenizer.js", "writer.js", "worker.js")
BITS, GROUP = 8, 64  # quantization of matrices
MAX_PARAMETERS = 30_000_000  # 40 MB of HTML; a token then takes a tenth of a second
MARK = "\ue000"  # stands for a message


def page(model: str | os.PathLike[str], *, title: str | None = None) -> str:
    """Make one HTML file that runs a model: one types, it answers, and its words fade.

    Matrices have 8 bits, as `mlx_lm.convert -q` makes them, and stay as they are if they have
    already; state transitions and vectors are float32. The script offers
    `window.gateloop.generate(prompt, {maxTokens, temperature, seed})`, a promise of the text.

    Args:
        model: A directory of `save`, or the name of an embedded model.
        title: Heading; None takes the directory's name.

    Returns:
        The content of the file.

    Raises:
        InputError: The model is too large or has options that the page lacks, or its tokenizer is
            no byte pair encoding with bytes for unknown letters.

    Examples:
        >>> page("demo")[:15]
        '<!doctype html>'
    """
    found, tokenizer = load(model)
    directory = model_directory(os.fspath(model))
    _check(found)
    data = {
        "format": FORMAT,
        "version": VERSION,
        "config": asdict(found.args),
        "tokenizer": _tokenizer(directory),
        "chat": _chat(tokenizer),
        "stops": sorted(stop_token_ids(tokenizer)),
        "rates": [LOW, HIGH],
    }
    chats = data["chat"] is not None
    placeholder = "Ask something; Enter sends it" if chats else "Begin a text; Enter continues it"
    words = {
        "about": "This page runs the model itself: nothing is sent anywhere. ",
        "form": inserted(part("form.html"), {"placeholder": placeholder}),
        "note": "",
    }
    hidden = {"weights": coded_weights(directory), "worker": script_of(WORKER)}
    return filled(
        data,
        title or f"{directory.name}: a model that runs in this page",
        SCRIPTS,
        inserted(part("words.html"), words),
        model="".join(
            f'<script type="text/plain" id="{name}">{text}</script>\n'
            for name, text in hidden.items()
        ),
        workers="blob:",
    )


def _check(model: Any) -> None:
    if not isinstance(model, Model):
        raise InputError(f"model_type: a page runs 'gateloop', got {model.model_type!r}")
    args, defaults = model.args, ModelArgs()
    if other := [name for name in PACKAGE_ONLY if getattr(args, name) != getattr(defaults, name)]:
        given = shown(getattr(args, other[0]))
        raise InputError(f"{other[0]}: a page runs {getattr(defaults, other[0])!r}, got {given}")
    if args.transition not in GATED:
        raise InputError(f"transition: a page runs {' or '.join(GATED)}, got {args.transition}")
    weights: dict[str, mx.array] = dict(tree_flatten(Model(args).parameters()))
    count = sum(weight.size for weight in weights.values())  # not evaluated, so without memory
    if count > MAX_PARAMETERS:
        raise InputError(
            f"a page runs at most {MAX_PARAMETERS:,} parameters, got {count:,}; use "
            "`gateloop watch`, which records a text"
        )


def _tokenizer(directory: Path) -> dict[str, Any]:
    tree = read_json(directory / "tokenizer.json")
    model = tree["model"]
    adds = (tree["post_processor"] or {}).get("special_tokens")
    changes = tree["normalizer"] or tree["pre_tokenizer"] or adds
    if model.get("type") != "BPE" or not model.get("byte_fallback") or changes:
        raise InputError(
            f"{directory / 'tokenizer.json'}: a page reads byte pair encodings with byte_fallback "
            "and nothing before or after, as `gateloop train` makes them"
        )
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    special = {token["content"]: token["id"] for token in tree["added_tokens"]}
    return {"pieces": pieces, "merges": model["merges"], "special": special}


def _chat(tokenizer: Any) -> list[str] | None:
    """Split the chat template where messages stand; None without one."""
    if not tokenizer.has_chat_template:
        return None
    messages = [{"role": role, "content": MARK} for role in ("user", "assistant", "user")]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    before, after, between, _ = text.split(MARK)
    return [before, between, after]


def coded_weights(directory: Path) -> str:
    """Write a model's weights in the safetensors format, matrices in 8 bits, as base64."""
    from mlx_lm.utils import dequantize_model, load_model

    model, _ = load_model(directory, model_config=OUR_CODE)
    stored = {(getattr(m, "bits", BITS), getattr(m, "mode", "affine")) for m in model.modules()}
    if stored != {(BITS, "affine")}:
        model = dequantize_model(model)
    nn.quantize(model, GROUP, BITS, class_predicate=_has_groups)
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    weights = {n: w if w.dtype == mx.uint32 else w.astype(mx.float32) for n, w in weights.items()}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "weights.safetensors"
        mx.save_safetensors(str(file), weights)
        return base64.b64encode(file.read_bytes()).decode("ascii")


def _has_groups(_: str, module: nn.Module) -> bool:
    return hasattr(module, "to_quantized") and module.weight.shape[1] % GROUP == 0
