"""What is written down twice says the same."""

import os
import re
import subprocess
import sys
import zipfile
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


def test_the_wheel_holds_all_and_works_alone(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    place = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(place)
    tracked = {str(p.relative_to(ROOT)) for p in (ROOT / "mlx_gateloop").rglob("*.py")}
    assert tracked <= set(names)
    top = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert top == {"mlx_gateloop", "_mlx_gateloop_hook.py", "mlx_gateloop_hook.pth"}
    code = "import mlx_gateloop as gl; print(gl.__file__, gl.ModelArgs().model_type)"
    child = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout.split() == [str(place / "mlx_gateloop" / "__init__.py"), "gateloop"]


def test_every_requirement_is_imported_somewhere():
    files = [f for part in ("mlx_gateloop", "app", "convert") for f in (ROOT / part).rglob("*.py")]
    sources = "\n".join(file.read_text() for file in files)
    for requirement in listed():
        if requirement.name == "gradio":  # the app's, whose package is still empty
            continue
        module = MODULES.get(requirement.name, requirement.name.replace("-", "_"))
        assert re.search(rf"^\s*(import|from) {module}\b", sources, re.MULTILINE), requirement
