"""The page's ES modules, which Gradio's events import."""

from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from mlx_gateloop.watch.sharing import PARTS

STATIC = Path(__file__).parent / "static"
# Folders as in the repository, so that imports between modules work in Node, too.
URL = "/scripts/app/page/static"
SHARED_URL = "/scripts/mlx_gateloop/watch/shared"


class _Revalidated(StaticFiles):
    """Static files that the browser revalidates, so that an update takes effect at once."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "no-cache"
        return response


def routes() -> list[Mount]:
    folders = {URL: STATIC, SHARED_URL: PARTS}
    return [Mount(url, _Revalidated(directory=folder)) for url, folder in folders.items()]


def call(module: str, function: str, *arguments: str, folder: str = URL) -> str:
    """Return JavaScript that imports a module and calls its function with these expressions."""
    url = f"new URL('.{folder}/{module}.js', document.baseURI)"  # works behind a proxy
    return f"import({url}).then((m) => m.{function}({', '.join(arguments)}))"
