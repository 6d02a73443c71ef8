"""Print requirements.txt: what the installed package and all its extras declare."""

import re
from importlib.metadata import requires

HEADER = """\
# Made by `make requirements` from pyproject.toml: the package's dependencies with all extras.
# On Linux, plain torch brings gigabytes of CUDA: pytorch.org says how to get it without."""


def text() -> str:
    lines = {HEADER: None}
    for requirement in requires("mlx-gateloop") or []:
        if not requirement.startswith("mlx-gateloop["):
            line = re.sub(r"\s*(;|and) extra == .*", "", requirement)
            lines[line] = None  # in their order, each once
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(text(), end="")
