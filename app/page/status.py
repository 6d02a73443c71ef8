"""Lines of HTML: a run's statistics and a model's sizes."""

import html

from ..generation.models import ModelInfo
from ..generation.run import Run


def describe_model(info: ModelInfo) -> str:
    """Describe a model's sizes in a line of HTML."""
    if not info.transition:  # another type of model
        heads = f" of {info.heads} heads" if info.heads else ""
        layers = f"{info.layers} layers{heads}, " if info.layers else ""
        return html.escape(f"{layers}{info.kind}")
    kind = info.transition.replace("_", "-")
    return f"{info.layers} layers of {info.channels} channels, {kind} transitions"


def note(line: str, name: str = "") -> str:
    """Format a line that screen readers announce; `name` is its class."""
    return f'<p role="status" class="{name}">{html.escape(line)}</p>'


def status(run: Run | None, at: int = 0, branches: int = 1, problem: str = "") -> str:
    """Format a run's statistics as HTML.

    Branch number `at` of several is shown; `problem` says why the chat is not saved.
    """
    end = f"<span class='version'>version {at + 1} of {branches}</span>" * (branches > 1)
    if problem:
        end += f"<p>{html.escape(problem)}</p>"
    if run is None:
        return f'<div class="stats"><span>ready</span>{end}</div>'
    stats = run.stats
    waited, prefill = stats.waiting_seconds, stats.prefill_tokens_per_second
    read = f"{stats.prompt_tokens_read:,} of {stats.prompt_tokens:,} tokens"
    state = html.escape(run.state.name) if run.state else ""
    state += "" if run.left is None else f", {run.left:.0%} left"
    figures = [
        (waited > 0.1, "waited", f"{waited:,.1f} s"),
        (stats.first_token_seconds, "first token", f"{1000 * stats.first_token_seconds:,.0f} ms"),
        (stats.prompt_tokens, "read", read),
        (prefill, "prefill", f"{prefill:,.0f} tok/s"),
        (stats.decode_tokens_per_second, "decode", f"{stats.decode_tokens_per_second:,.0f} tok/s"),
        (stats.guessed, "by lookup", f"{stats.guessed:,} of {stats.tokens:,} tokens"),
        (run.state, "speaks as", state),
        (stats.state_bytes, "state", f"{stats.state_bytes / 1000:,.1f} kB, constant"),
        (stats.attention_bytes, "attention", f"{stats.attention_bytes / 1000:,.1f} kB, grows"),
        (stats.memory_bytes, "memory", f"{stats.memory_bytes / 1e6:,.0f} MB"),
    ]
    chips = [f"<span>{name} <b>{text}</b></span>" for known, name, text in figures if known]
    if not chips and not run.done:
        chips = ["<span>waiting for the model</span>"]
    if run.stats.note:
        chips.append(f"<span>{run.stats.note}</span>")
    kind = " running"
    if run.done:
        kind = "" if run.error or run.reason == "end" or not run.text else " cut"
        chips.append(f"<span>{_end(run)}</span>")
    return f'<div class="stats{kind}">{"".join(chips)}{end}</div>'


def _end(run: Run) -> str:
    """Say what ended a run."""
    if run.error or run.stopped:
        return "failed" if run.error else "stopped"
    limit = f"stopped at the limit of {run.max_tokens:,} tokens"
    return {"limit": limit, "stop": "stopped at the stop text"}.get(run.reason, "done")
