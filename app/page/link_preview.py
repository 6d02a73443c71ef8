"""The preview of a link to the app."""

import re

from gradio import routes
from jinja2 import ChoiceLoader, DictLoader

META = re.compile(r'<meta\s+(?:property="og:|name="twitter:)[^>]*>')
PREVIEW = {
    "title": "GateLoop",
    "type": "website",
    "description": "A chat that shows what the model remembers and forgets",
}
PAGES = ("frontend/index.html", "frontend/share.html")


def name_the_project() -> None:
    """Let previews show this project: Gradio's templates name Gradio, before any `head` of ours."""
    environment = routes.templates.env
    own = "".join(
        f'<meta property="og:{name}" content="{text}" />' for name, text in PREVIEW.items()
    )
    gradios, pages = environment.loader, {}
    assert gradios is not None
    for page in PAGES:
        source, _, _ = gradios.get_source(environment, page)
        pages[page] = META.sub("", source).replace("<head>", f"<head>{own}", 1)
    environment.loader = ChoiceLoader([DictLoader(pages), gradios])
