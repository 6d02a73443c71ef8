"""The /generate endpoint for gradio_client and MCP."""

import base64
from typing import Any

import gradio as gr
import numpy as np
from gradio.events import api

from mlx_gateloop.errors import InputError
from mlx_gateloop.watch import Trace
from mlx_gateloop.watch.sharing import HIGH, LOW

from .generation.engine import Engine
from .generation.worker_pool import WorkerPool
from .server import request_values

MAX_TRANSITIONS = 8 * 2**20  # bytes; enough for 560 tokens, 12 layers and 624 channels


def add_endpoint(engine: Engine, first_model: str) -> None:
    """Add /generate to the page being built; `first_model` is its default model."""
    pool = WorkerPool(threads=1, max_jobs=8)

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
        """Generate text with a GateLoop model, optionally with its state transitions.

        Args:
            prompt: Text to continue, or a message to answer.
            model: Name of the model; empty means the app's first model.
            chat: True if the prompt is a chat message.
            max_tokens: Maximum number of tokens.
            temperature: Sampling temperature; 0 takes the likeliest token.
            top_p: Sample from the smallest set of tokens with at least this probability.
            seed: Seed of the random numbers; None or -1 takes a new one.
            transitions: Also return |a| and arg a of every token, layer and channel, in 8 bits.
        """
        try:
            record = request_values.check_type("transitions", transitions, bool)
            text = request_values.check_type("prompt", prompt, str)
            limit = request_values.integer("max_tokens", max_tokens)
            name = request_values.check_type("model", model, str) or first_model
            await engine.fetch(name)
            as_chat = request_values.check_type("chat", chat, bool)
            asked = [{"role": "user", "content": text}] if as_chat else text
            sampling = request_values.sampling(temperature=temperature, top_p=top_p, seed=seed)
            run = engine.submit(name, asked, sampling, limit, record)
            await run.ended()
            answer: dict[str, Any] = {
                "text": run.text,
                "tokens": run.stats.tokens,
                "prompt_tokens": run.stats.prompt_tokens,
                "tokens_per_second": round(run.stats.decode_tokens_per_second, 1),
            }
            if run.trace is not None:
                answer["transitions"] = sent = await pool(_transitions, run.trace)
                if sent is None:
                    raise InputError("transitions: too many requests; try again in a moment")
            return answer
        except InputError as error:  # plain text: programs read it
            raise gr.Error(str(error), print_exception=False) from None

    api(generate, api_name="generate", concurrency_limit=None)


def _transitions(trace: Trace) -> dict[str, Any]:
    size = 2 * sum(trace.channels)  # bytes of a token
    if trace.tokens * size > MAX_TRANSITIONS:
        most = f"this model sends at most {MAX_TRANSITIONS // size} tokens"
        total = f"the prompt and the answer have {trace.tokens}"
        raise InputError(f"transitions: {most}, {total}; ask for fewer, or without transitions")
    layers = [trace.columns(layer) for layer in range(trace.layers)]
    shapes = [list(columns.shape) for columns in layers]
    answer = {
        "columns": base64.b64encode(b"".join(map(np.ndarray.tobytes, layers))).decode(),
        "shapes": shapes,
        "axes": ["token", "log(-log|a|) or phase", "channel"],
        "layers": list(trace.names),
        "magnitude": f"exp(-{LOW} * {HIGH / LOW} ** (byte / 255))",
        "phase": "(byte / 255 * 2 - 1) * pi",
        "mean_magnitude": np.round(trace.averages(), 4).tolist(),
    }
    if shapes and all(shape == shapes[0] for shape in shapes):
        answer |= {"shape": [len(layers), *shapes[0]], "axes": ["layer", *answer["axes"]]}
    return answer
