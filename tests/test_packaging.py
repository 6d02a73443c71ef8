"""What is written down twice says the same."""

import re
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
# distributions whose modules have other names
MODULES = {"pyyaml": "yaml", "huggingface-hub": "huggingface_hub", "protobuf": "google.protobuf"}


def listed() -> list[Requirement]:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def test_requirements_are_the_packages_dependencies():
    declared = [Requirement(line) for line in requires("mlx-gateloop") or []]
    assert sorted(map(str, declared)) == sorted(map(str, listed()))


def test_every_requirement_is_imported_somewhere():
    files = [f for part in ("mlx_gateloop", "app", "convert") for f in (ROOT / part).rglob("*.py")]
    sources = "\n".join(file.read_text() for file in files)
    for requirement in listed():
        if requirement.name == "gradio":  # the app's, whose package is still empty
            continue
        module = MODULES.get(requirement.name, requirement.name.replace("-", "_"))
        assert re.search(rf"^\s*(import|from) {module}\b", sources, re.MULTILINE), requirement
