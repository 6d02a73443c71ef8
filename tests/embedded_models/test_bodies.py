"""The functions whose bodies a model writes, and the test of what it wrote."""

import pytest

from benchmarks.embedded_models.bodies import body, functions

FILE = '''import os

def first(a,
          b=1):
    """Do it."""
    return a

def short(): return 1

class Box:
    @property
    def size(self):

        if self.items:
            return 1
        return 0

    async def wait(self):  # not yet
        pass

    async def go(self):
        await self
\x0c
def last():
    pass
'''


@pytest.fixture(scope="module")
def found():
    return {function.header.split("(")[0].split()[-1]: function for function in functions(FILE)}


def test_prompt_and_body_are_the_text_of_the_file(found):
    indents = {"first": 0, "size": 4, "go": 4, "last": 0}
    assert {name: function.indent for name, function in found.items()} == indents
    for function in found.values():
        assert function.prompt + function.body in FILE
        assert FILE.startswith(function.prompt)
    assert found["first"].header == "def first(a,\n          b=1):\n"
    assert found["first"].body == '    """Do it."""\n    return a\n'
    assert found["size"].header == "    def size(self):\n\n"
    assert found["size"].before.endswith("    @property\n")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_body_ends_before_the_next_line_that_is_not_deeper(found, size):
    own = "        if self.items:\n\n            return 1\n\n"
    written = own + "    def other(self):\n        pass\n"
    pieces = [written[i : i + size] for i in range(0, len(written), size)]
    assert body(found["size"], pieces) == (own, True)
    assert body(found["size"], [own]) == (own, False)
    assert body(found["first"], ["    return 1\n", "x"]) == ("    return 1\n", True)
    assert body(found["first"], ["\n", "x = 1\n"]) == ("\n", True)


def test_bodies_of_files_are_accepted_and_what_is_not_python_is_refused(found):
    for function in found.values():
        assert function.accepts(function.body)
        assert body(function, [function.body, "\n", "x"]) == (function.body + "\n", True)
    wrong = ["", "\n", "    return 1\n", "        return 1\n      x\n"]
    wrong += [f"        {text}\n" for text in ("return (", "'''", "return \0", "if x:")]
    assert [text for text in wrong if found["size"].accepts(text)] == []


def test_a_docstring_alone_is_told_from_code(found):
    function = found["go"]
    assert not function.accepts("        x = 1\ry = 2\n")  # another statement after it
    assert function.is_documentation('        """Go."""\n')
    assert not function.is_documentation('        """Go."""\n        return 1\n')
    assert not function.is_documentation("        pass\n")
