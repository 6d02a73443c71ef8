from benchmarks.embedded_models import pydocs

KNOWN = [  # name, signature, beginning
    ("os.path.join", "(a, *p)", "Join two or more pathname components"),
    ("len", "(obj)", "Return the number of items"),
    ("math.sin", "(x)", "Return the sine of x"),
    ("str.upper", "()", "Return a copy of the string converted to uppercase."),
    ("textwrap.dedent", "(text)", "Remove any common leading whitespace"),
    ("threading.Thread.join", "(timeout=None)", "Wait until the thread terminates."),
    ("collections.Counter", "", "Dict subclass for counting hashable items."),
]


def test_the_library_and_its_groups(monkeypatch):
    entries = {entry.name: entry for entry in pydocs.library()}
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
