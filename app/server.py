"""The server: puts models, engine and page together, and closes them together."""

import ctypes
import errno
import gc
import shutil
import signal
import socket
import threading
from argparse import Namespace
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import gradio as gr
from gradio import http_server
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp

from mlx_gateloop.errors import InputError

from . import log, security
from .connections import Server
from .conversations.folder import ConversationFolder
from .generation.engine import Engine
from .generation.models import Models
from .guard import Guard
from .page import scripts
from .page.handlers import Handlers
from .page.layout import build
from .page.state_view import download_folder
from .stream_parts import StreamParts

EMBEDDED = Path(__file__).parent / "embedded_models"
MOST_SESSIONS = 512  # tabs that the server knows; each takes 120 kB and its chat
M_ARENA_MAX = -8  # of glibc's malloc.h
PORTS = range(7860, 7960)  # tried where none is given; the first is Gradio's
# The system's: a web font would be a request to another server.
FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
MONO = ["ui-monospace", "Menlo", "Consolas", "monospace"]


def serve(arguments: Namespace) -> None:
    """Run the app until it is interrupted.

    Args:
        arguments: Of the command line, see `__main__`.

    Raises:
        InputError: An argument cannot be used.
    """
    share_arenas()
    host = arguments.host.strip("[]")
    auth = security.credentials(arguments.auth, host, arguments.share)
    if arguments.mcp and find_spec("mcp") is None:
        # not "gradio[mcp]", which wants an older pydantic than we do
        raise InputError('--mcp: its package is missing; pip install "mcp>=1.21,<2"')
    if arguments.mcp and auth:
        raise InputError("--mcp: Gradio asks for no password there; leave out --mcp or --auth")
    port = _free_port(host, arguments.port)
    models = Models([EMBEDDED, *arguments.models], arguments.allow_hub, trusted=EMBEDDED)
    first = arguments.model or next(iter(models.names()), None)
    if first is None:
        raise InputError("no model: give a folder of model directories with --models DIR")
    models.fetch(first)
    models.info(first)
    engine, page = Engine(models), None
    try:
        folder = ConversationFolder(arguments.conversations, models, engine.states)
        page = build(Handlers(engine, first), folder)
        page.queue(max_size=engine.limits.queue, default_concurrency_limit=8, api_open=False)
        _launch(page, arguments, host, port, auth)
        print(f"GateLoop is at {page.local_url}  (Ctrl-C ends it)", flush=True)
        gc.freeze()  # or each collection would look at all modules, and hold up every answer
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        threading.Event().wait()
    finally:
        if page is not None:
            page.close(verbose=False)
        engine.close()
        shutil.rmtree(download_folder(), ignore_errors=True)


def share_arenas() -> None:
    """Let all threads take memory from the same two arenas, where glibc has them.

    With an arena for each thread the memory that one gave back waits for that thread: after half
    an hour of use 110 of 275 MB were in use.
    """
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def _launch(
    page: gr.Blocks, arguments: Namespace, host: str, port: int, auth: tuple[str, str] | None
) -> None:
    files = download_folder()

    def guarded(app: ASGIApp) -> ASGIApp:
        app = Guard(StreamParts(app), files)
        return TrustedHostMiddleware(app, security.allowed_hosts(host, arguments.share))

    log.keep_short()
    http_server.Server = partial(Server, guarded=guarded)  # type: ignore[assignment, misc]
    page.launch(
        server_name=security.in_address(host),
        server_port=port,
        share=arguments.share,
        auth=auth,
        inbrowser=arguments.open,
        mcp_server=arguments.mcp,
        state_session_capacity=MOST_SESSIONS,
        head=f'<script src="{scripts.URL}/stream_parts.js"></script>',
        app_kwargs={"routes": scripts.routes()},
        allowed_paths=[str(files)],
        enable_monitoring=False,
        run_history=False,
        ssr_mode=False,
        show_error=True,
        footer_links=["api"],
        theme=_theme(),
        css_paths=[scripts.STATIC / name for name in ("page.css", "chat_words.css")],
        quiet=True,
        prevent_thread_lock=True,
    )


def _free_port(host: str, port: int | None) -> int:
    """Return the port if it is free; without one, the first free one from 7860 on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in PORTS if port is None else (port,):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
                return candidate
            except socket.gaierror:
                raise InputError(f"--host {host}: not an address of this machine") from None
            except OSError as error:
                if port is not None or error.errno != errno.EADDRINUSE:
                    raise InputError(
                        f"--host {host} --port {candidate}: {error.strerror}; give another port"
                    ) from None
    raise InputError(f"--port: {PORTS[0]} to {PORTS[-1]} are all in use; give another one")


def _theme() -> gr.themes.Base:
    theme = gr.themes.Soft(primary_hue="orange", neutral_hue="zinc", font=FONTS, font_mono=MONO)
    return theme.set(
        block_title_background_fill="none",
        block_title_background_fill_dark="none",
        block_title_text_color="*body_text_color_subdued",
        block_title_text_color_dark="*body_text_color_subdued",
        block_title_text_weight="500",
        block_title_padding="0",
        body_text_color_subdued="*neutral_500",
        input_border_width="1px",
        input_border_color="*neutral_200",
    )
