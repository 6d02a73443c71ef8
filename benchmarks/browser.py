"""The app as a process, and a Chromium that looks at it; for the measurements beside this file."""

import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parent.parent
NAMES = ("chromium", "chromium-browser", "google-chrome")
START_SECONDS = 120
VIEW = "document.querySelector('#chat-view .gl').view"


@contextmanager
def served(log: Path, *arguments: str) -> Iterator[tuple[str, int]]:
    """The address and the process id of `python -m app`, which ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "app", "--port", str(port), *arguments]
    with log.open("w") as out:
        server = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}/"
    try:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > end:
                    sys.exit(f"error: the server did not start: {log.read_text()}")
                time.sleep(0.1)
        yield url, server.pid
    finally:
        server.terminate()
        server.wait(30)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium of the system."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(browser: Browser, url: str, tokens: int) -> Page:
    """A visitor's tab with a limit of tokens set."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(url)
    page.wait_for_function("document.querySelector('#chat-view .gl')?.view")
    page.wait_for_selector("#settings .toggle-button", state="attached")
    page.evaluate("document.querySelector('#settings .toggle-button').click()")
    field = page.locator("#max-tokens input[type=number]")
    field.fill(str(tokens))
    field.press("Tab")
    page.evaluate("document.querySelector('#settings .toggle-button').click()")
    return page


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status")
    if status.exists() and (found := re.search(r"VmRSS:\s+(\d+)", status.read_text())):
        return int(found[1]) / 1024
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)])) / 1024
