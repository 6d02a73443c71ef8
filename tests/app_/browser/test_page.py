"""What a visitor sees and does, in the real app."""

import json
from pathlib import Path

import numpy as np
from gradio_client import Client

COLUMNS = """name => {
  const picture = document.querySelector('#chat-view .gl').view.pictures[name].canvas;
  const pixels = picture.getContext('2d').getImageData(0, 0, picture.width, picture.height).data;
  const painted = x => pixels[4 * x + 3] === 255;
  return [Array.from({length: picture.width}, (_, x) => painted(x)).lastIndexOf(true) + 1,
          Array.from({length: picture.width}, (_, x) => painted(x)).filter(Boolean).length,
          picture.height];
}"""


def test_an_answer_streams_with_a_column_for_every_token(page):
    page.ask("hello")
    page.tab.wait_for_function(
        "document.querySelector('#chat .bot')?.innerText.length > 0"
        " && !document.querySelector('#chat-view .gl').view.done"
    )
    tokens = page.finished()
    written = [piece for piece in page.view("pieces") if not piece["prompt"]]
    assert len(written) == page.tokens
    assert tokens > page.tokens
    for picture, rows in enumerate((page.channels, page.channels, page.layers)):
        assert page.tab.evaluate(COLUMNS, picture) == [tokens, tokens, rows]
    status = page.tab.locator("#chat-status").inner_text()
    for figure in ("first token", "prefill", "decode", "state", "memory"):
        assert figure in status


def test_a_second_message_reads_only_itself(page):
    page.ask("a first message " * 20)
    page.finished()
    page.ask("b")
    page.finished()
    page.tab.wait_for_function(
        "[...document.querySelectorAll('#chat-status b')].some(b => /^\\d+ of /.test(b.innerText))"
    )
    figures = page.tab.locator("#chat-status b").all_inner_texts()
    now, _, whole, _ = next(text for text in figures if " of " in text).split()
    assert int(now) < 60
    assert int(whole.replace(",", "")) > 300


def test_hover_tells_token_channel_and_half_life(page):
    page.ask("hover")
    page.finished()
    page.tab.wait_for_timeout(200)
    box = page.tab.locator("#chat-view .magnitude").bounding_box()
    width = min(16, box["width"] / len(page.view("pieces")))
    page.tab.mouse.move(box["x"] + 10.5 * width, box["y"] + box["height"] * 20.5 / page.channels)
    tip = page.tab.locator("#chat-view .tip").inner_text()
    assert tip.startswith("token 10 ")
    assert " channel 20 " in tip
    for word in ("|a|", "half-life", "phase"):
        assert word in tip


def test_a_click_draws_what_is_remembered_and_the_likeliest_tokens(page):
    page.ask("click")
    last = page.finished() - 1
    page.tab.locator(f"#chat-view .text span[data-token='{last}']").click()
    page.tab.wait_for_function("document.querySelector('#chat-view .gl').view.row")
    row = page.view("row")
    assert len(row["magnitude"]) == len(row["full"]) == last + 1
    assert row["magnitude"][-1] == 1
    assert row["magnitude"] == sorted(row["magnitude"])
    chances = [chance for _, chance in row["candidates"]]
    assert chances == sorted(chances, reverse=True)
    assert 0 < sum(chances) <= 1.001
    assert page.tab.locator("#chat-view .candidates li").count() == len(chances) > 1
    colour = "e => getComputedStyle(e).backgroundColor"
    token = page.tab.locator(f"#chat-view .text span[data-token='{last}']")
    assert "252, 137, 97" in token.evaluate(colour)
    token.press("ArrowLeft")
    page.tab.wait_for_function(
        f"document.querySelector('#chat-view .gl').view.row?.magnitude.length === {last}"
    )


def test_switching_layers_while_it_runs_loses_no_column(page):
    page.set_tokens(600)
    page.ask("layers")
    for layer in (2, 0, 3):
        page.tab.select_option("#chat-view .layer", index=layer)
        page.tab.wait_for_timeout(150)
    tokens = page.finished()
    assert page.view("layer") == 3
    assert tokens > 600
    assert page.tab.evaluate(COLUMNS, 0) == [tokens, tokens, page.channels]


def test_sorted_channels_are_ordered_by_half_life(page):
    page.ask("order")
    page.finished()
    page.tab.select_option("#chat-view .order", "sorted")
    order = page.view("order")
    assert sorted(order) == list(range(page.channels))
    assert order != sorted(order)


def test_stop_ends_the_run_and_keeps_the_text(page):
    page.set_tokens(1024)
    page.ask("stop")
    page.tab.locator("#chat-stop").click()
    tokens = page.finished()
    assert 0 < tokens < 1024
    page.tab.wait_for_function("document.querySelector('#chat-status').innerText.includes('stop')")
    assert page.tab.locator("#chat .bot").count() >= 1


def test_retry_edit_and_undo_go_back(page):
    page.ask("one")
    page.finished()
    first, before = page.tab.locator("#chat .bot").last.inner_text(), page.view("run")
    page.tab.get_by_label("Retry").last.click()
    page.begun(before)
    page.finished()
    assert page.tab.locator("#chat .bot").last.inner_text() != first  # drawn anew
    assert page.tab.locator("#chat [data-testid=user]").count() == 1
    before = page.view("run")
    page.tab.get_by_label("Edit").first.click()
    page.tab.locator("#chat textarea").fill("two < three")
    page.tab.get_by_label("Submit").first.click()
    page.begun(before)
    page.finished()
    assert page.tab.locator("#chat [data-testid=user]").inner_text().strip() == "two < three"
    page.tab.get_by_label("Undo").last.click()
    page.tab.wait_for_function("document.querySelectorAll('#chat [data-testid=user]').length === 0")
    assert page.tab.locator("#chat-box textarea").input_value() == "two < three"


def test_completion_and_side_by_side(page):
    page.tab.get_by_role("tab", name="Completion").click()
    page.tab.wait_for_function("document.querySelector('#complete-view .gl')?.view")
    page.ask("Once upon", "complete")
    tokens = page.finished("complete")
    assert tokens == page.tokens + len("Once upon")
    assert page.tab.locator("#complete-text textarea").input_value().startswith("Once upon")
    page.tab.get_by_role("tab", name="Side by side").click()
    page.tab.wait_for_function("document.querySelector('#right-view .gl')?.view")
    page.ask("both", "compare", "left")
    for side in ("left", "right"):
        page.finished(side)
        assert "both" in "".join(piece["text"] for piece in page.view("pieces", side))
    assert page.view("run", "left") != page.view("run", "right")


def test_two_visitors_at_once(page, new_page):
    other = new_page()
    for visitor in (page, other):
        visitor.set_tokens(300)
    page.ask("first visitor")
    other.ask("second visitor")
    for visitor, text in ((page, "first visitor"), (other, "second visitor")):
        visitor.finished()
        assert text in "".join(piece["text"] for piece in visitor.view("pieces"))
    assert page.view("run") != other.view("run")


def test_a_closed_tab_frees_the_engine(new_page, page):
    busy = [new_page() for _ in range(4)]  # as many as the engine runs at once
    for visitor in busy:
        visitor.set_tokens(1024)
        visitor.ask("long")
    for visitor in busy:
        visitor.tab.close()
    page.set_tokens(8)
    page.ask("is anybody there?")
    page.finished()


def test_a_reload_begins_anew(page):
    page.set_tokens(1024)
    page.ask("before the reload")
    page.reload()
    page.set_tokens(8)
    page.ask("after")
    page.finished()
    assert page.tab.locator("#chat [data-testid=user]").count() == 1


def test_downloads(page, tmp_path):
    page.ask("download")
    tokens = page.finished()
    for button in ("png", "npz"):
        with page.tab.expect_download() as download:
            page.tab.locator(f"#chat-view .{button}").click()
        assert download.value.suggested_filename.endswith(f".{button}")
        download.value.save_as(tmp_path / f"file.{button}")
    assert (tmp_path / "file.png").read_bytes().startswith(b"\x89PNG")
    with np.load(tmp_path / "file.npz") as arrays:
        shape = (page.layers, tokens, page.channels)
        assert arrays["magnitude"].shape == arrays["phase"].shape == shape
        assert (arrays["magnitude"] <= 1).all()


def test_a_saved_conversation_goes_on(page):
    page.ask("remember me")
    page.finished()
    page.tab.locator("#settings-button").click()
    page.tab.get_by_text("Saved conversations").click()
    page.tab.locator("#save-name textarea, #save-name input").fill("kept for later")
    page.tab.locator("#save").click()
    page.tab.wait_for_function("document.querySelector('#saved input').value === 'kept for later'")
    page.tab.locator("#clear").click()
    page.tab.wait_for_function("document.querySelectorAll('#chat [data-testid=user]').length === 0")
    page.tab.locator("#open").click()
    page.tab.wait_for_function("document.querySelectorAll('#chat [data-testid=user]').length === 1")
    page.tab.locator("#settings-button").click()
    page.ask("and now")
    page.finished()


def test_dark_and_phone(new_page, tmp_path):
    for name, options in {
        "dark": {"color_scheme": "dark"},
        "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True},
    }.items():
        page = new_page(**options)
        page.set_tokens(48)
        page.ask("look")
        page.finished()
        picture = Path(tmp_path / f"{name}.png")
        page.tab.screenshot(path=picture, full_page=True)
        assert picture.stat().st_size > 20_000
        wide = page.tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, "the page scrolls sideways"
        background = page.tab.evaluate("getComputedStyle(document.body).backgroundColor")
        bright = sum(json.loads(f"[{background[4:-1]}]")) > 3 * 128
        assert bright == (name != "dark")


def test_programs_can_ask_too(server):
    answer = Client(server.url, verbose=False).predict(
        "abc", max_tokens=5, seed=1, transitions=True, api_name="/generate"
    )
    assert answer["tokens"] == 5
    layers, tokens, planes, channels = answer["transitions"]["shape"]
    assert (tokens, planes) == (answer["prompt_tokens"] + 5, 2)
    assert len(answer["transitions"]["mean_magnitude"]) == tokens
    assert layers * channels > 0
