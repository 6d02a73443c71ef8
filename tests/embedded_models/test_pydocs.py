import json

from helpers.interpreter import python

from benchmarks.embedded_models import pydocs

READ = """
import json, sys
from dataclasses import astuple
from benchmarks.embedded_models import pydocs
before = set(sys.modules)
entries = [astuple(entry) for entry in pydocs.library()]
new = set(sys.modules) - before
new = sorted(m for m in new if (getattr(sys.modules[m], "__file__", None) or "").endswith(".py"))
print(json.dumps([entries, new]))
"""


KNOWN = [  # name, signature, beginning
    ("os.path.join", "(a, *p)", "Join two or more pathname components"),
    ("len", "(obj)", "Return the number of items"),
    ("math.sin", "(x)", "Return the sine of x"),
    ("str.upper", "()", "Return a copy of the string converted to uppercase."),
    ("textwrap.dedent", "(text)", "Remove any common leading whitespace"),
    ("threading.Thread.join", "(timeout=None)", "Wait until the thread terminates."),
    ("collections.Counter", "", "Dict subclass for counting hashable items."),
]


def test_the_library_is_read_without_a_warning_or_an_import(monkeypatch):
    read, new = json.loads(python(READ, "-W", "error"))
    assert not new
    entries = {name: pydocs.Entry(name, *rest) for name, *rest in read}
    for name, signature, beginning in KNOWN:
        assert entries[name].signature == signature
        assert entries[name].doc.startswith(beginning)
    assert len(entries) > 4000
    for entry in entries.values():
        assert entry.doc.strip()
        assert not any(part.startswith("_") for part in entry.name.split("."))

    monkeypatch.setattr(pydocs, "library", entries.values)
    groups = pydocs.groups.__wrapped__()
    assert any('The "try" statement' in text for (text, *_) in groups)
    (group,) = (group for group in groups if entries["textwrap.dedent"].chat in group)
    assert entries["textwrap.dedent"].text in group[0]
    assert sum(isinstance(document, list) for group in groups for document in group) == len(entries)


def test_a_question_and_its_answer():
    question, answer = pydocs.Entry("os.path.join", "(a, *p)", "Join two\npaths.\n\nMore.").chat
    assert question == {"role": "user", "content": "What does `os.path.join` do?"}
    assert answer == {"role": "assistant", "content": "`os.path.join(a, *p)`: Join two paths."}
