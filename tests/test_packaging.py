"""What is written down twice says the same."""

import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import requires
from pathlib import Path
from sysconfig import get_path

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


def test_a_wheel_made_without_a_compiler_holds_all_and_works_alone(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    nowhere = {"CC": str(tmp_path / "cc"), "CXX": str(tmp_path / "cxx")}
    subprocess.run(
        [*command, "--disable-pip-version-check", "-w", str(tmp_path), str(ROOT)],
        env=os.environ | nowhere,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    place = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(place)
    built = "mlx_gateloop/_build_info.py"
    kinds = (".py", ".inc", ".metal", ".cuda")
    files = [p for p in (ROOT / "mlx_gateloop").rglob("*") if p.suffix in kinds]
    source = {str(p.relative_to(ROOT)) for p in files}
    package = {name for name in names if name.startswith("mlx_gateloop/")}
    assert package == source | {built, "mlx_gateloop/py.typed"}
    top = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert top == {"mlx_gateloop", "_mlx_gateloop_hook.py", "mlx_gateloop_hook.pth"}
    code = """
import mlx_gateloop as gl, mlx.core as mx
from mlx_gateloop.ops.native import absence
h = gl.linear_scan(mx.full((1, 3, 1), 0.5), mx.ones((1, 3, 1)))
print(gl.__file__, gl.ModelArgs().model_type, h.reshape(-1).tolist(), absence(), sep="|")
"""
    child = subprocess.run(
        [sys.executable, "-S", "-c", code],  # no `.pth` file runs, not even an editable install's
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(place), get_path("platlib")])},
        capture_output=True,
        text=True,
        check=True,
    )
    file, model_type, states, absence = child.stdout.strip().split("|")
    assert (file, model_type) == (str(place / "mlx_gateloop" / "__init__.py"), "gateloop")
    assert states == "[1.0, 1.5, 1.75]"
    expected = "no C++ compiler was found" if sys.platform == "linux" else "built on Linux only"
    assert expected in absence


def test_every_requirement_is_imported_somewhere():
    files = [f for part in ("mlx_gateloop", "app", "convert") for f in (ROOT / part).rglob("*.py")]
    sources = "\n".join(file.read_text() for file in files)
    for requirement in listed():
        if requirement.name == "gradio":  # the app's, whose package is still empty
            continue
        module = MODULES.get(requirement.name, requirement.name.replace("-", "_"))
        assert re.search(rf"^\s*(import|from) {module}\b", sources, re.MULTILINE), requirement
