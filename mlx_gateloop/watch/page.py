"""A model as one HTML file, which runs it without a server and without the network."""

import base64
import json
import os
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_reduce

from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.io.files import staged
from mlx_gateloop.io.model_file import PACKAGE_ONLY
from mlx_gateloop.io.models import OUR_CODE, refusing, save
from mlx_gateloop.model.arguments import GATED
from mlx_gateloop.model.lm import Model, ModelArgs
from mlx_gateloop.tokenizer import stop_token_ids
from mlx_gateloop.watch.sharing import HIGH, LOW, filled, part, script_of

# Each file imports only from earlier ones.
SCRIPTS = ("colours.js", "data.js", "plain.js", "play.js", "view.js", "live.js")
WORKER = ("model.js", "tokenizer.js", "writer.js", "worker.js")
BITS, GROUP = 8, 64  # quantization of matrices
MAX_PARAMETERS = 30_000_000  # 40 MB of HTML; a token then takes a tenth of a second
OTHER_PIECES = ("continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")
MARK = "\ue000"  # stands for a message


def page(
    model: Any, tokenizer: Any, path: str | os.PathLike[str], *, title: str | None = None
) -> None:
    """Write one HTML file that runs a model: one types, it answers, and its words fade.

    Matrices have 8 bits, as `mlx_lm.convert -q` makes them, and stay as they are if they have
    already; state transitions and vectors are float32. The script offers
    `window.gateloop.generate(prompt, {maxTokens, temperature, seed})`, a promise of the text.

    Args:
        model: A GateLoop of `gl.load`.
        tokenizer: Its tokenizer.
        path: The file.
        title: Heading; None is a general one.

    Raises:
        InputError: The model is too large or has options that the page lacks, or its tokenizer is
            no byte pair encoding with bytes for unknown letters.

    Examples:
        >>> import mlx_gateloop as gl
        >>> with TemporaryDirectory() as folder:
        ...     gl.watch.page(*gl.load("demo"), f"{folder}/demo.html")
    """
    _check(model)
    if Path(path).is_dir():
        raise InputError(f"{path}: is a folder; give a file")
    data = {
        "config": asdict(model.args),
        "tokenizer": _tokenizer(tokenizer),
        "chat": _chat(tokenizer),
        "stops": sorted(stop_token_ids(tokenizer)),
        "rates": [LOW, HIGH],
    }
    chats = data["chat"] is not None
    placeholder = "Ask something; Enter sends it" if chats else "Begin a text; Enter continues it"
    about = "This page runs the model itself: nothing is sent anywhere. "
    form = part("form.html").format(placeholder=placeholder)
    with TemporaryDirectory() as folder:
        save(model, tokenizer, folder)
        hidden = {"weights": coded_weights(Path(folder)), "worker": script_of(WORKER)}
    text = filled(
        data,
        title or "A model that runs in this page",
        SCRIPTS,
        part("words.html").format(about=about, form=form, note=""),
        model="".join(
            f'<script type="text/plain" id="{name}">{text}</script>\n'
            for name, text in hidden.items()
        ),
        workers="blob:",
    )
    with staged(Path(path)) as new:
        new.write_text(text, encoding="utf-8")


def _check(model: Any) -> None:
    if not isinstance(model, Model):
        raise InputError(f"model_type: a page runs 'gateloop', got {model.model_type!r}")
    args, defaults = model.args, ModelArgs()
    if other := [name for name in PACKAGE_ONLY if getattr(args, name) != getattr(defaults, name)]:
        given = shown(getattr(args, other[0]))
        raise InputError(f"{other[0]}: a page runs {getattr(defaults, other[0])!r}, got {given}")
    if args.transition not in GATED:
        raise InputError(f"transition: a page runs {' or '.join(GATED)}, got {args.transition}")
    # not evaluated, so without memory
    count = tree_reduce(lambda n, weight: n + weight.size, Model(args).parameters(), 0)
    if count > MAX_PARAMETERS:
        limit = f"a page runs at most {MAX_PARAMETERS:,} parameters, got {count:,}"
        raise InputError(f"{limit}; use `gateloop watch`, which records a text")


def _tokenizer(tokenizer: Any) -> dict[str, Any]:
    tree = json.loads(tokenizer.backend_tokenizer.to_str())
    model = tree["model"]
    adds = (tree["post_processor"] or {}).get("special_tokens")
    strips = ("lstrip", "rstrip", "single_word")
    other = [t for t in tree["added_tokens"] if not t["special"] or any(map(t.get, strips))]
    parts = [tree["normalizer"], tree["pre_tokenizer"], *map(model.get, OTHER_PIECES)]
    changes = any(parts) or adds or other
    if model.get("type") != "BPE" or not model.get("byte_fallback") or changes:
        kind = "byte pair encodings with byte_fallback, special tokens and nothing else"
        raise InputError(f"tokenizer: a page reads {kind}, as `gateloop train` makes them")
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    special = {token["content"]: token["id"] for token in tree["added_tokens"]}
    return {"pieces": pieces, "merges": model["merges"], "special": special}


def _chat(tokenizer: Any) -> list[str] | None:
    """Split the chat template where messages stand; None without one."""
    if tokenizer.chat_template is None:
        return None
    messages = [{"role": role, "content": MARK} for role in ("user", "assistant", "user")]
    with refusing("tokenizer", "a page cannot use its chat template"):
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
    nn.quantize(
        model, GROUP, BITS,
        class_predicate=lambda _, m: hasattr(m, "to_quantized") and m.weight.shape[1] % GROUP == 0,
    )  # fmt: skip
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    weights = {n: w if w.dtype == mx.uint32 else w.astype(mx.float32) for n, w in weights.items()}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "weights.safetensors"
        mx.save_safetensors(str(file), weights)
        return base64.b64encode(file.read_bytes()).decode("ascii")
