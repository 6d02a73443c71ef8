"""Answers as HTML: no character is lost, and nothing of a text becomes HTML."""

from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mlx_gateloop.app.page.markdown import answer_html

OURS = {"span", "button", "i", "code", "strong", "em", "mark"}
SIGNS = ["`", "```", "\n", "**", "*", "# ", "<b>", "&lt;", "x", " ", "![a](http://b)", "é"]
STARS = "**bold** and *slanted* but 2 * 3 * 4 and a*b*c"


class Parsed(HTMLParser):
    """The text of an HTML fragment, its tags, and the text in each."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.text, self.open, self.found = "", [], {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        assert {name for name, _ in attributes} <= {"class", "title"}
        self.open.append("mark" if ("class", "mark") in attributes else tag)

    def handle_endtag(self, tag):
        self.open.pop()

    def handle_data(self, data):
        self.text += data
        for tag in self.open:
            self.found[tag] = self.found.get(tag, "") + data


@given(st.lists(st.sampled_from(SIGNS) | st.characters(exclude_categories=["Cs"])).map("".join))
@example("`" * 30_000)  # minutes if the time grew with the square of the length
@example(" **x" * 20_000)
def test_every_character_stays_and_only_our_tags_are_there(text):
    parsed = Parsed(answer_html(text))
    assert parsed.text == text.replace("\0", "\ufffd").replace("\r", " ")
    assert {*parsed.found} <= OURS


@pytest.mark.parametrize(("text", "tag", "inside"), [
    ("a `b < c` d", "code", "b < c"),
    ("say:\n```python\nx = '<b>'\n# no heading\n```\nend", "code", "x = '<b>'\n# no heading\n"),
    ("an open\n```\nblock `a`", "code", "block `a`"),
    (STARS, "strong", "bold"), (STARS, "em", "slanted"),
    ("text\n## Title\nmore", "strong", "Title"),
])  # fmt: skip
def test_code_and_emphasis_are_styled(text, tag, inside):
    assert Parsed(answer_html(text)).found[tag] == inside


def test_a_growing_answer_only_grows():
    start, rest = "Use it so:\n```python\n", "print(1)\n"
    pages = [answer_html(start + rest[:end]) for end in range(len(rest))]
    assert all(after.startswith(before) for before, after in pairwise(pages))
