"""Metadata for previews of links to the app."""

import re

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

META = re.compile(rb'<meta\s+(?:property="og:|name="twitter:)[^>]*>')
PREVIEW = {
    "title": "GateLoop",
    "type": "website",
    "description": "A chat that shows what the model remembers and forgets",
}
HEAD = "<head>" + "".join(f'<meta property="og:{k}" content="{v}" />' for k, v in PREVIEW.items())


class LinkPreview:
    """Middleware that replaces Gradio's metadata in the page's head."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message = {}

        async def send_renamed(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)  # sent later, with the new length
                return
            body = META.sub(b"", message["body"]).replace(b"<head>", HEAD.encode(), 1)
            MutableHeaders(raw=start["headers"])["content-length"] = str(len(body))
            await send(start)
            await send({**message, "body": body})

        is_page = scope["type"] == "http" and scope["path"] == f"{scope['root_path']}/"
        await self._app(scope, receive, send_renamed if is_page else send)
