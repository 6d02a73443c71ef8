"""Example prompts."""

from pathlib import Path

CHAT_EXAMPLES = [
    "What does `str.split` do?",
    "What does `re.sub` do?",
    "How do I use os.path.join?",
]
# From files of Python's standard library that are not in the training data of the model `code`; a
# file begins with its label. Copyright the Python Software Foundation, PSF License Version 2
# (https://docs.python.org/3/license.html).
FOLDER = Path(__file__).parent / "static" / "examples"
TEXT_EXAMPLES = dict(
    file.read_text("utf-8").split("\n", 1) for file in sorted(FOLDER.glob("*.txt"))
)
