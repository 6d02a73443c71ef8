"""The list of conversations: what a click shows, and what an import keeps."""

import json

import gradio as gr
from mlx_gateloop.app.conversations.folder import ConversationFolder
from mlx_gateloop.app.generation.run import Run
from mlx_gateloop.app.page.handlers import Handlers
from mlx_gateloop.app.page.sessions import Chat
from mlx_gateloop.app.page.side_list import SideList
from mlx_gateloop.app.page.status import note


async def test_imports_keep_the_model_and_clicks_on_what_is_answered_do_nothing(engine, tmp_path):
    folder = ConversationFolder(tmp_path, engine.models, engine.prefix_cache)
    handlers = Handlers(engine, "tiny", folder)
    text = json.dumps([{"role": "user", "content": "a"}])
    with gr.Blocks():  # needs an event loop
        side = SideList(handlers, folder)
    _, me, model, _, asked, *_ = side._take(["a.json", len(text), text], "old", "fixed")
    assert (model, folder.open("a")[1]) == ("fixed", "fixed")
    handlers.sessions.put(me, asked, answering := Run("fixed"))
    assert all(each == gr.skip() for each in side.open(["a"], me))
    assert not answering.stopped
    answering.finish()
    assert side.open(["a"], me)[4] == asked
    assert side._rename("a/b", "", me)[:2] == (gr.skip(), gr.skip())  # what is typed stays
    assert side._rename(" b ", "", me)[1:] == (gr.skip(), "")
    assert side._rename("", "", me)[1:] == ("b", gr.skip())
    assert "send a message first" in side._rename("c", "", "new")[2]
    handlers.sessions.start("full", Chat(problem="not saved: no space"))
    assert "no space" in side._rename("c", "", "full")[2]
    assert side._export("new", "", "md") == (None, note("There is nothing to export yet."))
