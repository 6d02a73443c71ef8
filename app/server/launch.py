"""The launch: puts models, engine, page and server together, and closes them together."""

import errno
import gc
import logging
import shutil
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

from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.io.checks import check_open_files

from ..conversations.folder import ConversationFolder
from ..generation.engine import Engine
from ..generation.models import Models
from ..page import scripts
from ..page.handlers import Handlers
from ..page.layout import build
from ..page.state_view import download_folder
from . import log, security
from .connections import BACKLOG, Connection
from .link_preview import LinkPreview
from .middleware import Guard

EMBEDDED = Path(__file__).parents[1] / "embedded_models"
MOST_SESSIONS = 512  # tabs that the server knows; each takes 120 kB and its chat
PORTS = range(7860, 7960)  # tried where none is given; the first is Gradio's
CONSOLE_BROWSERS = ("www-browser", "links", "elinks", "lynx", "w3m")  # that Python knows
END_SECONDS = 1  # for answers that are still sent when the server ends
# The system's: a web font would be a request to another server.
FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
MONO = ["ui-monospace", "Menlo", "Consolas", "monospace"]


def serve(arguments: Namespace) -> None:
    """Run the app until it is interrupted, with the arguments of `__main__`."""
    check_open_files()
    host = arguments.host.strip("[]")
    auth = security.credentials(arguments.auth, host, arguments.share, bool(arguments.allow_host))
    if arguments.mcp and find_spec("mcp") is None:
        # not "gradio[mcp]", which wants an older pydantic than we do
        raise InputError('--mcp: its package is missing; pip install "mcp>=1.21,<2"')
    if arguments.mcp and auth:
        raise InputError("--mcp: Gradio asks for no password there; leave out --mcp or --auth")
    listener = _listen(host, arguments.port)
    models = Models([EMBEDDED, *arguments.models], arguments.allow_hub, trusted=EMBEDDED)
    first = arguments.model or next(iter(models.names()), None)
    if first is None:
        raise InputError("no model: give a folder of model directories with --models DIR")
    models.fetch(first)
    models.info(first)
    engine = Engine(models)
    try:
        folder = ConversationFolder(arguments.conversations, models, engine.states)
        page = build(Handlers(engine, first), folder)
        page.queue(max_size=engine.limits.queue, default_concurrency_limit=8, api_open=False)
        app = _application(page, arguments, host, auth)
        logging.getLogger().addHandler(log.handler())
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            backlog=BACKLOG,
            log_config=None,
            log_level="warning",
            timeout_graceful_shutdown=END_SECONDS,
        )
        _announce(page, arguments, host, listener.getsockname()[1])
        gc.freeze()  # or each collection would look at all modules, and hold up every answer
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        uvicorn.Server(config).run(sockets=[listener])
        raise KeyboardInterrupt  # nothing else ends it
    finally:
        engine.close()
        shutil.rmtree(download_folder(), ignore_errors=True)


def _application(
    page: gr.Blocks, arguments: Namespace, host: str, auth: tuple[str, str] | None
) -> FastAPI:
    files = download_folder()
    page.state_session_capacity = MOST_SESSIONS
    app = FastAPI(
        openapi_url=None,
        middleware=[
            Middleware(
                Guard,
                files=files,
                hosts=security.allowed_hosts(host, arguments.share),
                proxies=arguments.allow_host,
                root_path=arguments.root_path,
            ),
        ],
    )
    gr.mount_gradio_app(
        app,
        page,
        path="/",
        auth=auth,
        root_path=arguments.root_path or None,
        mcp_server=arguments.mcp,
        app_kwargs={"routes": scripts.routes(), "middleware": [Middleware(LinkPreview)]},
        allowed_paths=[str(files)],
        enable_monitoring=False,
        run_history=False,
        ssr_mode=False,
        show_error=True,
        footer_links=["api"],
        theme=_theme(),
        css_paths=[scripts.STATIC / name for name in ("page.css", "chat_words.css")],
    )
    return app


def _announce(page: gr.Blocks, arguments: Namespace, host: str, port: int) -> None:
    """Print where the app is, and open the tunnel and the browser that are asked for."""
    everywhere = host in ("0.0.0.0", "::")
    url = f"http://{'localhost' if everywhere else security.in_address(host)}:{port}/"
    if arguments.share:
        try:
            public = setup_tunnel(host, port, page.share_token, None, None)
        except Exception as error:  # the network, Gradio's servers, the disk
            raise InputError(f"--share: Gradio opens no tunnel: {one_line(error)}") from error
        print(f"The public link is {public.replace('http:', 'https:', 1)}", flush=True)
    print(f"GateLoop is at {url}  (Ctrl-C ends it)", flush=True)
    if arguments.mcp:
        print(f"The Model Context Protocol is at {url}gradio_api/mcp/", flush=True)
    if arguments.open:
        threading.Thread(target=_open, args=(url,), daemon=True).start()


def _open(url: str) -> None:
    """Open a browser that has a window: one in the terminal would take it from this process."""
    with suppress(webbrowser.Error):  # there is none
        browser = webbrowser.get()
        if Path(browser.name).name not in CONSOLE_BROWSERS:
            browser.open(url)


def _listen(host: str, port: int | None) -> socket.socket:
    """Listen on the port; without one, on the first free one from 7860 on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in PORTS if port is None else (port,):
        listener = socket.socket(family)
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
