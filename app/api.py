"""What programs can ask of the app: the endpoint /generate of gradio_client and of MCP."""

import asyncio
import base64
from typing import Any

import gradio as gr
import numpy as np

from mlx_gateloop.errors import InputError
from mlx_gateloop.watch.trace import HIGH, LOW, Trace

from . import request_values as settings
from .generation.engine import Engine, Run
from .generation.worker_pool import Desk

MOST_TRANSITIONS = 8 * 2**20  # bytes of an answer; 560 tokens of 12 layers of 624 channels


def add_endpoint(engine: Engine, first_model: str) -> None:
    """Adds /generate to the page that is being built.

    Args:
        engine: Runs the models.
        first_model: The model for a request that names none.
    """
    desk = Desk(threads=1, most=8)

    async def generate(
        prompt: str,
        model: str = "",
        chat: bool = False,
        max_tokens: int = 64,
        temperature: float = 0.7,
        top_p: float = 1.0,
        seed: int | None = None,
        transitions: bool = False,
    ) -> dict[str, Any]:
        """Generate text with a GateLoop model, on request with its state transitions.

        Args:
            prompt: Text to continue, or a message to answer.
            model: A model's name; empty for the one that the app started with.
            chat: Whether the prompt is a chat message.
            max_tokens: Tokens at most.
            temperature: 0 takes the likeliest token.
            top_p: Draw from the smallest set of tokens with at least this probability.
            seed: Of the random numbers; none or -1 takes another every time.
            transitions: Also return |a| and arg a of every token, layer and channel, in 8 bits.
        """
        try:
            record = settings.flag("transitions", transitions)
            text, most = settings.text("prompt", prompt), settings.whole("max_tokens", max_tokens)
            name = settings.text("model", model) or first_model
            await engine.fetch(name)
            run = engine.submit(
                name,
                [{"role": "user", "content": text}] if settings.flag("chat", chat) else text,
                settings.sampling(temperature=temperature, top_p=top_p, seed=seed),
                most,
                record,
            )
            await _finish(run, most)
            return await _answer(run, desk)
        except InputError as error:  # as plain text: a program reads it, not a page
            raise gr.Error(str(error), print_exception=False) from None

    gr.api(generate, api_name="generate", concurrency_limit=None)


async def _finish(run: Run, max_tokens: int) -> None:
    try:
        while True:
            done = run.done  # asked first, so that the size is checked in the end too
            if run.trace is not None:
                _check_size(run.trace, run.stats.prompt_tokens + max_tokens)
            if done:
                break
            await asyncio.sleep(0.02)
    finally:
        run.cancel()
    if run.error:
        raise InputError(run.error)


def _check_size(trace: Trace, tokens: int) -> None:
    if 2 * tokens * trace.layers * trace.channels > MOST_TRANSITIONS:
        most = MOST_TRANSITIONS // (2 * trace.layers * trace.channels)
        raise InputError(
            f"transitions: this model's are sent for {most} tokens at most, the prompt and "
            f"max_tokens are {tokens}; ask for less, or without transitions"
        )


async def _answer(run: Run, desk: Desk) -> dict[str, Any]:
    stats = run.stats
    answer: dict[str, Any] = {
        "text": run.text,
        "tokens": stats.tokens,
        "prompt_tokens": stats.prompt_tokens,
        "tokens_per_second": round(stats.decode_tokens_per_second, 1),
    }
    if run.trace is not None:
        answer["transitions"] = await desk(_transitions, run.trace)
        if answer["transitions"] is None:
            raise InputError("transitions: too many ask for them now; try again in a moment")
    return answer


def _transitions(trace: Trace) -> dict[str, Any]:
    layers = np.stack([trace.columns(layer) for layer in range(trace.layers)])
    return {
        "columns": base64.b64encode(layers.tobytes()).decode(),
        "shape": list(layers.shape),
        "axes": ["layer", "token", "log(-log|a|) or phase", "channel"],
        "magnitude": f"exp(-{LOW} * {HIGH / LOW} ** (byte / 255))",
        "phase": "(byte / 255 * 2 - 1) * pi",
        "mean_magnitude": np.round(trace.averages(), 4).tolist(),
    }
