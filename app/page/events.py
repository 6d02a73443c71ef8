"""How the page's events run."""

from typing import Any

PRIVATE: dict[str, Any] = {"api_visibility": "private"}
# The engine has the queue; one of Gradio's before it would only hide how long that is.
STREAM: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None, **PRIVATE}
QUICK: dict[str, Any] = {"queue": False, **PRIVATE}
