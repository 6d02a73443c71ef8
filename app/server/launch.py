"""Start of the app: models, engine, page and server; and their shutdown."""

import errno
import gc
import logging
import signal
import socket
import threading
import webbrowser
from argparse import Namespace
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import gradio as gr
import uvicorn
from fastapi import FastAPI
from gradio.networking import setup_tunnel
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from mlx_gateloop.errors import InputError, one_line

from ..conversations.folder import ConversationFolder
from ..generation.engine import Engine
from ..generation.models import Models
from ..openai_api import OpenAI
from ..page import scripts
from ..page.handlers import Handlers
from ..page.layout import build
from . import log, security
from .connections import BACKLOG, Connection
from .middleware import SecurityMiddleware

EMBEDDED = Path(__file__).parents[1] / "embedded_models"
CONVERSATIONS = "~/.gateloop/conversations"
MAX_SESSIONS = 512  # tabs; each takes 120 kB and its chat
PORTS = range(7860, 7960)  # tried without --port; the first is Gradio's
CONSOLE_BROWSERS = ("www-browser", "links", "elinks", "lynx", "w3m")  # known to Python
SHUTDOWN_SECONDS = 1  # for answers in progress
# System fonts: a web font would need a request to another server.
FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
MONO = ["ui-monospace", "Menlo", "Consolas", "monospace"]


def serve(arguments: Namespace) -> None:
    """Run the app with the arguments of `__main__` until an interrupt."""
    host, share = arguments.host, arguments.share
    auth = security.credentials(arguments.auth, host, share, bool(arguments.allow_host))
    if arguments.mcp and find_spec("mcp") is None:
        # not "gradio[mcp]", which needs an older pydantic
        raise InputError('--mcp: its package is missing; pip install "mcp>=1.21,<2"')
    if arguments.mcp and auth:
        raise InputError("--mcp: Gradio does not check the password there; omit --mcp or --auth")
    listener = _listen(host, arguments.port)
    models = Models([EMBEDDED, *arguments.models], arguments.allow_hub, trusted=EMBEDDED)
    first = arguments.model or next(iter(models.names()), None)
    if first is None:
        raise InputError("no model: give a folder of model directories with --models DIR")
    models.fetch(first)
    models.info(first)
    engine = Engine(models)
    try:
        where = arguments.conversations or (None if auth else CONVERSATIONS)
        kept = ConversationFolder(where, models, engine.prefix_cache) if where else None
        page = build(Handlers(engine, first, kept))
        page.queue(max_size=engine.limits.queue, default_concurrency_limit=8, api_open=False)
        app = _application(page, arguments, auth, OpenAI(engine, first, auth).routes())
        logging.getLogger().addHandler(log.handler())
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            backlog=BACKLOG,
            log_config=None,
            log_level="warning",
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        _announce(page, arguments, listener.getsockname()[1])
        gc.freeze()  # otherwise each collection scans all modules and delays answers
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        uvicorn.Server(config).run(sockets=[listener])
        raise KeyboardInterrupt  # the only way to end it
    finally:
        engine.close()


def _application(
    page: gr.Blocks, arguments: Namespace, auth: tuple[str, str] | None, routes: list[BaseRoute]
) -> FastAPI:
    page.state_session_capacity = MAX_SESSIONS
    hosts = security.allowed_hosts(arguments.host, arguments.share)
    guard = Middleware(SecurityMiddleware, hosts, arguments.allow_host, arguments.root_path)
    app = FastAPI(openapi_url=None, routes=routes, middleware=[guard])
    gr.mount_gradio_app(
        app,
        page,
        path="/",
        auth=auth,
        root_path=arguments.root_path or None,
        mcp_server=arguments.mcp,
        app_kwargs={"routes": scripts.routes()},
        enable_monitoring=False,
        run_history=False,
        ssr_mode=False,
        show_error=True,
        footer_links=["api"],
        theme=_theme(),
        css_paths=[scripts.STATIC / name for name in ("page.css", "chat_words.css")],
    )
    return app


def _announce(page: gr.Blocks, arguments: Namespace, port: int) -> None:
    """Print the URL; open a tunnel and a browser on request."""
    host = arguments.host
    name = "localhost" if host in ("0.0.0.0", "::") else security.in_address(host)
    url = f"http://{name}:{port}/"
    if arguments.share:
        try:
            public = setup_tunnel(host, port, page.share_token, None, None)
        except Exception as error:  # network, Gradio's servers or disk
            raise InputError(f"--share: Gradio's tunnel failed: {one_line(error)}") from error
        print(f"The public link is {public.replace('http:', 'https:', 1)}", flush=True)
    print(f"GateLoop is at {url}  (Ctrl-C ends it)", flush=True)
    if arguments.mcp:
        print(f"The Model Context Protocol is at {url}gradio_api/mcp/", flush=True)
    if arguments.open:
        threading.Thread(target=_open, args=(url,), daemon=True).start()


def _open(url: str) -> None:
    """Open a browser that has a window; one in the terminal would take over the terminal."""
    with suppress(webbrowser.Error):  # no browser
        browser = webbrowser.get()
        if Path(getattr(browser, "name", "")).name not in CONSOLE_BROWSERS:
            browser.open(url)


def _listen(host: str, port: int | None) -> socket.socket:
    for candidate in PORTS if port is None else (port,):
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(BACKLOG)
            return listener
        except socket.gaierror:
            raise InputError(f"--host {host}: not an address of this machine") from None
        except OSError as error:
            listener.close()
            if port is not None or error.errno != errno.EADDRINUSE:
                where = f"--host {host} --port {candidate}"
                raise InputError(f"{where}: {error.strerror}; give another port") from None
    raise InputError(f"--port: {PORTS[0]} to {PORTS[-1]} are all in use; give another port")


def _theme() -> gr.themes.Base:
    return gr.themes.Soft(primary_hue="orange", neutral_hue="zinc", font=FONTS, font_mono=MONO).set(
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
