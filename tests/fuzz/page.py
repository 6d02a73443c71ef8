"""The events of the app's page, called with any JSON in the way that Gradio calls them."""

import asyncio
import json
import shutil
import traceback
from typing import Any

import gradio as gr
from gradio.state_holder import SessionState
from helpers.models import save_tiny_model
from mlx_gateloop.app.conversations.folder import ConversationFolder
from mlx_gateloop.app.generation.engine import Engine
from mlx_gateloop.app.generation.models import Models
from mlx_gateloop.app.page.handlers import Handlers
from mlx_gateloop.app.page.layout import build

from mlx_gateloop.errors import InputError

OURS = ("/app/", "/mlx_gateloop/")  # Gradio's own refusals have no frame in there


class Page:
    """A page on an engine with a tiny model, in a folder of its own."""

    def __init__(self, folder):
        save_tiny_model(folder / "tiny", chat=True, hidden_size=16, intermediate_size=32)
        self.engine = Engine(Models([folder]))
        saved = ConversationFolder(folder / "saved", self.engine.models, self.engine.prefix_cache)
        self.page = build(Handlers(self.engine, "tiny", saved))
        self.functions = [
            function
            for block in self.page.blocks.values()
            for function in getattr(block, "server_fns", None) or []
        ]

    def requests(self):
        """A good request of each event, and of each function that the view's script calls."""
        found: list[Any] = []
        for index, event in self.page.fns.items():
            values = [getattr(block, "value", None) for block in event.inputs]
            data = ["text" if value is None or callable(value) else value for value in values]
            data = [3 if value == 256 else value for value in data]
            found.append([index, data, {"index": 0, "value": "x"}])
        found += [[-1 - i, ["id", 0, 0, 0], None] for i in range(len(self.functions))]
        return [json.dumps(request).encode() for request in found]

    def read(self, path):
        """Do what a request says: a number (below 0 of a server function), values, event data."""
        try:
            index, data, event = json.loads(path.read_bytes())
            known = index < len(self.page.fns) and -1 - index < len(self.functions)
        except (ValueError, TypeError, RecursionError):
            raise InputError("no request") from None
        if not known or not isinstance(index, int):
            raise InputError("no such event")
        try:
            asyncio.run(self._ask(index, data, event))
        except (gr.Error, RecursionError) as error:
            raise InputError(str(error)) from None
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            if any(part in frame.filename for frame in frames for part in OURS):
                raise
            raise InputError("refused by Gradio") from None
        finally:
            shutil.rmtree(path.with_name("saved"), ignore_errors=True)

    async def _ask(self, index, data, event):
        if index < 0:
            await self.functions[-1 - index](data)
            return
        if not isinstance(data, list):
            raise InputError("Gradio's server takes lists only")
        state, iterator, going = SessionState(self.page), None, True
        while going:
            update = await self.page.process_api(
                self.page.fns[index], data, state=state, iterator=iterator, session_hash="me",
                event_data=gr.EventData(None, event) if isinstance(event, dict) else None,
            )  # fmt: skip
            iterator, going = update["iterator"], update["is_generating"]

    def close(self):
        self.engine.close()
