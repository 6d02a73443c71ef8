import pytest
from helpers.interpreter import python

from mlx_gateloop.data import pydocs


@pytest.fixture(scope="module")
def entries():
    return {entry.name: entry for entry in pydocs.library()}


@pytest.mark.parametrize(
    ("name", "signature", "beginning"),
    [
        ("os.path.join", "(a, *p)", "Join two or more pathname components"),
        ("len", "(obj)", "Return the number of items"),
        ("math.sin", "(x)", "Return the sine of x"),
        ("str.upper", "()", "Return a copy of the string converted to uppercase."),
        ("textwrap.dedent", "(text)", "Remove any common leading whitespace"),
        ("threading.Thread.join", "(timeout=None)", "Wait until the thread terminates."),
        ("collections.Counter", "", "Dict subclass for counting hashable items."),
    ],
)
def test_well_known_entries(entries, name, signature, beginning):
    assert entries[name].signature == signature
    assert entries[name].doc.startswith(beginning)


def test_nothing_private_and_nothing_empty(entries):
    assert len(entries) > 4000
    for entry in entries.values():
        assert entry.doc.strip()
        assert not any(part.startswith("_") for part in entry.name.split("."))


def test_the_question_of_the_readme_has_its_answer(entries):
    question, answer = entries["os.path.join"].chat
    assert question == {"role": "user", "content": "What does `os.path.join` do?"}
    assert answer["role"] == "assistant"
    assert answer["content"].startswith("`os.path.join(a, *p)`: Join two or more pathname")


def test_documents_are_texts_and_chats_in_a_fixed_order():
    groups = pydocs.groups()
    assert groups == pydocs.groups.__wrapped__()  # read again, not from the cache
    documents = [document for group in groups for document in group]
    texts = [d for d in documents if isinstance(d, str)]
    assert sum(len(text) for text in texts) > 1_000_000
    assert sum(isinstance(d, list) for d in documents) > 4000
    assert any('The "try" statement' in text for text in texts)


def test_reading_imports_no_python_module_of_the_library():
    code = (
        "import sys; from mlx_gateloop.data import pydocs; before = set(sys.modules);"
        "pydocs.groups();"
        "print(*sorted(m for m in set(sys.modules) - before"
        " if (getattr(sys.modules[m], '__file__', None) or '').endswith('.py')))"
    )
    assert set(python(code, "-W", "error").split()) <= {"pydoc_data", "pydoc_data.topics"}
