"""`gateloop mlx-lm`: mlx-lm's commands, in a process that knows our model type."""

import argparse
import os
import sys
import time
from contextlib import suppress
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.model.registered import MODELS

MODEL_FLAGS = ("--model", "--hf-path", "--draft-model")


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="SUBCOMMAND ...")
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from mlx_lm import cli, utils
    from mlx_lm.models.cache import LRUPromptCache as Prompts

    from mlx_gateloop.io.models import local

    words = []
    for word in arguments.arguments or ["--help"]:  # --model=NAME as --model NAME
        flag, equals, value = word.partition("=")
        words += [flag, value] if equals and flag in MODEL_FLAGS else [word]
    named = [at for at, flag in enumerate(words[:-1], 1) if flag in MODEL_FLAGS]
    for at in named:
        flag, value, path = words[at - 1], words[at], Path(words[at]).expanduser()
        if value.startswith(("/", ".", "~")) and not path.exists():
            advice = "give one, or a name such as demo"
            raise InputError(f"{flag} {value}: no such model directory; {advice}")
        words[at] = os.fspath(local(str(path)))
    if words[0] == "awq":
        from mlx_lm.quant import awq

        add_awq_recipe(awq)
    patches = [
        (sys, "argv", ["mlx_lm", *words]),
        (utils, "load_model", with_our_class(utils.load_model, utils.load_config)),
        (Prompts, "fetch_nearest_cache", with_a_token_to_read(Prompts.fetch_nearest_cache)),
        (Prompts, "insert_cache", keeping_beginnings(Prompts.insert_cache)),
    ]
    if words[0] == "server":
        from huggingface_hub.constants import HF_HUB_CACHE
        from mlx_lm.server import ModelProvider

        with suppress(OSError):  # /v1/models scans it
            Path(HF_HUB_CACHE).mkdir(parents=True, exist_ok=True)
        patches.append((ModelProvider, "_load", checking_drafts(ModelProvider._load)))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    for patch in patches:
        setattr(*patch)
    try:
        options = dict(pairwise(words))
        if {"--model", "--draft-model"} <= options.keys():
            _check_draft(options["--model"], options["--draft-model"])
        cli.main()
    except EOFError:
        if words[0] != "chat":  # Ctrl-D ends it
            raise
        print()
    except (OSError, RuntimeError, ValueError, ModuleNotFoundError) as error:
        known = {"[load": one_line(error)}
        absent = " and ".join(words[at] for at in named if not Path(words[at]).exists())
        known["snapshot folder"] = f"{absent or 'default model'}: no directory, and no hub to ask"
        advice = {"lora": 'give lines of "text"'}.get(words[0], "use gateloop mlx-lm generate")
        known["chat_template is not set"] = f"no chat template; {advice}"
        if (package := getattr(error, "name", None)) in ("datasets", "lm_eval"):
            data = "--data: no such folder; give one, or " if words[0] == "lora" else ""
            known[package] = f"{data}pip install {package}, which is missing"
        known["CLI requires a subcommand"] = "no such command; see gateloop mlx-lm"
        reason = next((known[text] for text in known if text in str(error)), None)
        if isinstance(error, InputError) or (reason is None and not isinstance(error, ValueError)):
            raise
        raise InputError(f"mlx-lm {words[0]}: {reason or one_line(error)}") from None
    finally:
        for patch in before:
            setattr(*patch)
        # MLX frees a thread's compiled functions after its end, which aborts once Python ends.
        time.sleep(0.2)


def _check_draft(path: str, draft: str) -> None:
    from mlx_lm import load

    from mlx_gateloop.generate import check_draft

    model, tokenizer = load(path, lazy=True)
    check_draft(model, tokenizer, *load(draft, lazy=True))


def checking_drafts(load: Any) -> Any:
    """Wrap the server's loading: a draft that a request names is checked as `--draft-model` is."""

    @wraps(load)
    def _load(self: Any, path: str, adapter: str | None = None, draft: str | None = None) -> None:
        if draft is not None:
            _check_draft(path, draft)
        load(self, path, adapter, draft)

    return _load


def with_a_token_to_read(fetch: Any) -> Any:
    """Wrap the server's search for a known prompt, for caches of recurrent states.

    A prompt that is known whole keeps its last token to read, or the server's thread dies. A cache
    that cannot go back to a common beginning is passed over for one that ends there.
    """
    from mlx_lm.models.cache import trim_prompt_cache

    from mlx_gateloop.model.cache import CannotTrim, final

    def search(self: Any, model: Any, tokens: list[int]) -> tuple[Any, list[int]]:
        try:
            return fetch(self, model, tokens)
        except CannotTrim:
            with final():
                return fetch(self, model, tokens)

    def fetch_nearest_cache(self: Any, model: Any, tokens: list[int]) -> tuple[Any, list[int]]:
        cache, rest = search(self, model, tokens)
        if rest or not tokens:
            return cache, rest
        with suppress(CannotTrim):
            if trim_prompt_cache(cache, 1):
                return cache, tokens[-1:]
        cache, rest = search(self, model, tokens[:-1])
        return cache, [*rest, tokens[-1]]

    return fetch_nearest_cache


def keeping_beginnings(insert: Any) -> Any:
    """Wrap the server's insertion: caches of beginnings stay, as a state cannot go back to them."""
    from mlx_gateloop.model.cache import final

    @wraps(insert)
    def insert_cache(self: Any, *arguments: Any, **options: Any) -> None:
        with final():
            insert(self, *arguments, **options)

    return insert_cache


def with_our_class(load_model: Any, load_config: Any) -> Any:
    """Wrap mlx-lm's `load_model`: ours have our class, whatever `model_file` names."""

    def load(path: Path, *arguments: Any, **options: Any) -> Any:
        config = load_config(path)
        if config.get("model_type") not in MODELS or "model_file" not in config:
            return load_model(path, *arguments, **options)
        changes = (options.pop("model_config", None) or {}) | {"model_file": None}
        model, loaded = load_model(path, *arguments, model_config=changes, **options)
        return model, loaded | {"model_file": config["model_file"]}

    return load


def add_awq_recipe(awq: Any) -> None:
    """Add our recipe to mlx-lm's table: norms are scaled with all projections of their output.

    State-transition projections are never clipped, as they are not quantized. No scale passes GELU.
    """

    def scale_with_norm(*projections: str) -> Any:
        def applies(block: Any) -> bool:
            present = {name for name in block.time_mixing if name.endswith(("_proj", "conv1d"))}
            return _scales_norm(block) and present - {"out_proj"} == set(projections)

        names = {"block": "time_mixing", "prev": "time_norm", "layers": list(projections)}
        return awq.ScaleConfig(**names, kwargs=["mask"], use_config=applies)

    channel_mixing = {"block": "channel_mixing", "prev": "channel_norm", "layers": ["up_proj"]}
    awq.AWQ_MODEL_CONFIGS["gateloop"] = awq.AWQConfig(
        embed="embed_tokens",
        lm_head="lm_head",
        no_clip=["q_proj", "k_proj", "gamma_proj", "theta_proj"],
        scale_configs=[
            *(
                scale_with_norm("q_proj", "k_proj", "v_proj", *transition, *output)
                for transition in ((), ("gamma_proj",), ("gamma_proj", "theta_proj"))
                for output in ((), ("gate_proj",))
            ),
            awq.ScaleConfig(**channel_mixing, use_config=_scales_norm),
        ],
    )


def _scales_norm(block: Any) -> bool:
    """Tell if a block's norms can absorb a scale: only projections read their output."""
    return not block.is_post and "weight" in block.time_norm
