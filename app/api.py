"""What programs can ask of the app: the endpoint /generate of gradio_client and of MCP."""

import asyncio
import base64
from typing import Any

import gradio as gr
import numpy as np

from app.answers import complaint
from app.engine import Engine, Run
from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling
from mlx_gateloop.trace import HIGH, LOW, Trace


def add_endpoint(engine: Engine, first_model: str) -> None:
    """Adds /generate to the page that is being built.

    Args:
        engine: Runs the models.
        first_model: The model for a request that names none.
    """

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
            seed: Of the random numbers; none takes another every time.
            transitions: Also return |a| and arg a of every token, layer and channel, in 8 bits.
        """
        try:
            sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
            messages = [{"role": "user", "content": prompt}] if chat else prompt
            run = engine.submit(
                model or first_model, messages, sampling, int(max_tokens), transitions, None
            )
        except InputError as error:
            raise complaint(str(error)) from None
        try:
            while not run.done:
                await asyncio.sleep(0.02)
        finally:
            run.cancel()
        if run.error:
            raise complaint(run.error)
        return _answer(run)

    gr.api(generate, api_name="generate", concurrency_id="run")


def _answer(run: Run) -> dict[str, Any]:
    stats = run.stats
    answer: dict[str, Any] = {
        "text": run.text,
        "tokens": stats.tokens,
        "prompt_tokens": stats.prompt_tokens,
        "tokens_per_second": round(stats.decode_tokens_per_second, 1),
    }
    if run.trace is not None:
        answer["transitions"] = _transitions(run.trace)
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
