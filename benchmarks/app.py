"""The cost of the live view: tokens a second with and without it, redraws, memory, start-up.

    python benchmarks/app.py

It makes the paper's model (12 layers, 624 channels) with random weights, and needs Playwright and a
Chromium. Rates are tokens a second.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from gradio_client import Client

import mlx_gateloop as gl

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from helpers.browser import ROOT, Page, Server, chromium, memory_mb, new_context, served, view
from helpers.models import chat_tokenizer, never_end

VIEW = view()
TURNS = (1, 40, 200)
LAYERS, CHANNELS = 12, 624

# Prints seconds from after the imports to when the server answers, and ends.
START = """
import sys, time
from mlx_gateloop import cli
from mlx_gateloop.app.server import security
security.environment(False, False)
from mlx_gateloop.app.server import launch

class Server(launch.uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(f"{time.perf_counter() - began:.2f} s", flush=True)
        self.should_exit = True

launch.uvicorn.Server = Server
began = time.perf_counter()
cli.main(["app", *sys.argv[1:]])
"""

# Notes the milliseconds from Enter to the first text of the answer.
FIRST = """() => {
  const chat = document.querySelector("#chat");
  const answers = () => chat.querySelectorAll("[data-testid=bot] .chatbot");
  const before = answers().length;
  let began;
  window.firstToken = null;
  const pressed = ({ key }) => { if (key === "Enter") began = performance.now(); };
  addEventListener("keydown", pressed, { capture: true, once: true });
  const changed = new MutationObserver(() => {
    if (!began || !answers()[before]?.textContent) return;
    window.firstToken = performance.now() - began;
    changed.disconnect();
  });
  changed.observe(chat, { childList: true, subtree: true, characterData: true });
}"""


def make_model(folder: Path) -> None:
    """Make a model that writes letters and spaces: others need fonts, or more than one token."""
    tokenizer = chat_tokenizer()
    args = gl.ModelArgs(
        vocab_size=len(tokenizer),
        hidden_size=CHANNELS,
        intermediate_size=3 * CHANNELS,
        num_hidden_layers=LAYERS,
    )
    model = gl.Model(args)
    never_end(model, tokenizer)
    model.lm_head.bias -= 1e9
    for letter in tokenizer.encode("abcdefghijklmnopqrstuvwxyz "):
        model.lm_head.bias = model.lm_head.bias.at[letter].add(1e9)
    gl.save(model, tokenizer, folder / "bench")


def count_traffic(tab: Any) -> Counter[str]:
    """Count the traffic of a page from now on: "bytes" with headers, and "requests"."""
    traffic: Counter[str] = Counter()

    def sent(event: dict[str, Any]) -> None:
        request = event["request"]
        headers = sum(len(name) + len(value) + 4 for name, value in request["headers"].items())
        traffic.update(bytes=headers + len(request.get("postData", "")), requests=1)

    def received(event: dict[str, Any]) -> None:  # the head of an answer, or data
        traffic["bytes"] += event.get("response", event)["encodedDataLength"]

    events = tab.context.new_cdp_session(tab)
    events.send("Network.enable")
    events.on("Network.requestWillBeSent", sent)
    for part in ("responseReceived", "dataReceived"):
        events.on(f"Network.{part}", received)
    return traffic


def ask(page: Page, traffic: Counter[str], tokens: int, live: bool) -> dict[str, float]:
    """Ask in the page; returns the server's rate, and what the page shows and asks for.

    These are the view's redraws a second, milliseconds from Enter to the first text of the answer,
    and bytes and requests until all of it is shown.
    """
    tab = page.tab
    page.settings()
    tab.locator("#live input").set_checked(live)
    page.settings()
    tab.locator("#clear").click()
    tab.wait_for_function("document.querySelector('#chat-status').innerText.includes('ready')")
    tab.wait_for_function(f"!{VIEW}.run")
    draws, before = page.view("draws"), traffic.copy()
    tab.evaluate(FIRST)
    tab.locator("#chat-box textarea").fill("go on")
    tab.locator("#chat-box textarea").press("Enter")
    status = "document.querySelector('#chat-status').innerText"
    tab.wait_for_function(f"{status}.includes('decode')", timeout=60_000)
    began = time.perf_counter()
    tab.wait_for_function(f"/done|stopped/.test({status})", timeout=600_000)
    seconds = time.perf_counter() - began
    if live:
        tab.wait_for_function(f"{VIEW}.recording.done && {VIEW}.have >= {tokens}")
    text = tab.locator("#chat-status").inner_text()
    tab.wait_for_timeout(300)  # the last requests end
    return {
        "rate": float(re.search(r"decode\s+([\d,]+)", text)[1].replace(",", "")),
        "draws": (page.view("draws") - draws) / seconds,
        "first": tab.evaluate("window.firstToken"),
        **(traffic - before),
    }


def without_page(url: str, tokens: int) -> float:
    """Generate the same through the endpoint, without page and transitions; returns the rate."""
    answer = Client(url, verbose=False).predict(
        "go on", chat=True, max_tokens=tokens, api_name="/generate"
    )
    return answer["tokens_per_second"]


def by_turn(page: Page, traffic: Counter[str]) -> None:
    """Measure turns of one chat with short answers."""
    print("\n| turn | first token, ms | kB a turn | requests |\n|" + " --- |" * 4)
    page.tab.locator("#clear").click()
    page.tab.wait_for_function(f"!{VIEW}.run")
    page.set_tokens(8)
    for turn in range(1, TURNS[-1] + 1):
        before = traffic.copy()
        page.tab.evaluate(FIRST)
        page.ask("go on")
        page.finished()
        if turn in TURNS:
            first, spent = page.tab.evaluate("window.firstToken"), traffic - before
            cells = f"{first:.0f} | {spent['bytes'] / 1000:.0f} | {spent['requests']}"
            print(f"| {turn} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        options = ("--models", folder, "--model", "bench")
        start = [sys.executable, "-c", START, *options, "--port", "7899"]
        started = subprocess.run(start, cwd=ROOT, capture_output=True, text=True, check=True)
        print(f"start after imports: {started.stdout.splitlines()[-1]}\n", flush=True)
        with served(Path(folder) / "log", *options) as server, chromium() as browser:
            page = Page(new_context(browser), server.url)
            page.set_tokens(arguments.tokens)
            measure(page, server, arguments)


def measure(page: Page, server: Server, arguments: argparse.Namespace) -> None:
    """Alternate runs with and without the view, so that a busy machine slows both."""
    without_page(server.url, 32)
    traffic = count_traffic(page.tab)
    rates: dict[str, list[float]] = {"endpoint": [], "off": [], "on": []}
    firsts = []
    print(
        "| run | endpoint alone | page, view off | page, live view | redraws/s | server, MB "
        "| first token, ms | kB a turn | requests |"
    )
    print("|" + " --- |" * 9)
    for run in range(arguments.runs):
        rates["endpoint"].append(without_page(server.url, arguments.tokens))
        rates["off"].append(ask(page, traffic, arguments.tokens, live=False)["rate"])
        seen = ask(page, traffic, arguments.tokens, live=True)
        rates["on"].append(seen["rate"])
        firsts.append(seen["first"])
        cells = " | ".join(f"{values[-1]:.1f}" for values in rates.values())
        print(
            f"| {run + 1} | {cells} | {seen['draws']:.1f} | {memory_mb(server.process.pid):.0f} "
            f"| {seen['first']:.0f} | {seen['bytes'] / 1000:.0f} | {seen['requests']} |",
            flush=True,
        )
    by_turn(page, traffic)
    print(f"\nfirst token on the page: {median(firsts):.0f} ms (median)")
    middle = {name: median(values) for name, values in rates.items()}
    for name, what in (("off", "the same page without it"), ("endpoint", "the endpoint alone")):
        cost = 1 - middle["on"] / middle[name]
        print(f"\nthe live view costs {100 * cost:.1f}% against {what} (medians)")


if __name__ == "__main__":
    main()
