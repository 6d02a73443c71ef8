"""What the live view costs: tokens a second with and without it, redraws, memory, start-up.

    python benchmarks/app.py

It makes the paper's model (12 layers, 624 channels) with random weights, and needs Playwright and a
Chromium. Everything is printed as a table.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import mlx.core as mx
from browser import ROOT, VIEW, chromium, memory_mb, open_page, served
from gradio_client import Client
from playwright.sync_api import Page

import mlx_gateloop as gl
from mlx_gateloop.tokenizer import byte_tokenizer, stop_token_ids

# Prints seconds from after the imports to when the server answers, and ends.
START = """
import sys, time, types
from app import security
security.environment(False)
from app import serve
from app.__main__ import _parser

def answered():
    print(f"{time.perf_counter() - began:.2f} s", flush=True)
    raise KeyboardInterrupt

serve.threading = types.SimpleNamespace(Event=answered)  # it would wait on one
arguments = _parser().parse_args(sys.argv[1:])
began = time.perf_counter()
try:
    serve.serve(arguments)
except KeyboardInterrupt:
    pass
"""


def make_model(folder: Path, layers: int, channels: int) -> None:
    """A model that never ends by itself."""
    tokenizer = byte_tokenizer()
    args = gl.ModelArgs(
        vocab_size=len(tokenizer),
        hidden_size=channels,
        intermediate_size=3 * channels,
        num_hidden_layers=layers,
    )
    model = gl.Model(args)
    stops = mx.array(stop_token_ids(tokenizer))
    model.lm_head.bias = mx.zeros(len(tokenizer)).at[stops].add(-1e9)
    gl.save(model, tokenizer, folder / "bench")


def ask(page: Page, tokens: int) -> dict[str, float]:
    """One run in the page: its rate as the server measured it, and the view's redraws."""
    before = page.evaluate(f"{VIEW}.run")
    draws = page.evaluate(f"{VIEW}.draws")
    page.locator("#clear").click()
    page.locator("#chat-box textarea").fill("go on")
    page.locator("#chat-box textarea").press("Enter")
    page.wait_for_function(f"o => {VIEW}.run && {VIEW}.run !== o", arg=before, timeout=60_000)
    began = time.perf_counter()
    page.wait_for_function(f"{VIEW}.done && {VIEW}.have >= {tokens}", timeout=600_000)
    seconds = time.perf_counter() - began
    page.wait_for_function("document.querySelector('#chat-status').innerText.includes('done')")
    text = page.locator("#chat-status").inner_text()
    rate = float(re.search(r"decode\s+([\d,]+)", text)[1].replace(",", ""))
    return {"rate": rate, "draws": (page.evaluate(f"{VIEW}.draws") - draws) / seconds}


def without_view(url: str, tokens: int) -> float:
    """The same generation through the endpoint, without transitions."""
    answer = Client(url, verbose=False).predict(
        "go on", chat=True, max_tokens=tokens, api_name="/generate"
    )
    return answer["tokens_per_second"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--channels", type=int, default=624)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), arguments.layers, arguments.channels)
        options = ("--models", folder, "--model", "bench")
        start = [sys.executable, "-c", START, *options, "--port", "7899"]
        started = subprocess.run(start, cwd=ROOT, capture_output=True, text=True, check=True)
        print(f"start after imports: {started.stdout.splitlines()[-1]}\n", flush=True)
        with served(Path(folder) / "log", *options) as (url, pid), chromium() as browser:
            measure(open_page(browser, url, arguments.tokens), url, pid, arguments)


def measure(page: Page, url: str, pid: int, arguments: argparse.Namespace) -> None:
    """Runs with and without the view in turns, so that a busy machine hurts both."""
    without_view(url, 32)
    seen, plain = [], []
    print("| run | without view, tok/s | with view, tok/s | redraws/s | server memory, MB |")
    print("| --- | --- | --- | --- | --- |")
    for run in range(arguments.runs):
        plain.append(without_view(url, arguments.tokens))
        seen.append(ask(page, arguments.tokens))
        print(
            f"| {run + 1} | {plain[-1]:.1f} | {seen[-1]['rate']:.1f} | {seen[-1]['draws']:.1f} "
            f"| {memory_mb(pid):.0f} |",
            flush=True,
        )
    cost = 1 - median(run["rate"] for run in seen) / median(plain)
    print(f"\nthe view costs {100 * cost:.1f}% (medians)")


if __name__ == "__main__":
    main()
