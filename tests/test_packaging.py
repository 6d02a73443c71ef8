"""What is written down twice says the same."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_requirements_are_the_packages_dependencies():
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    declared = [line.strip().strip(",").strip("'\"") for line in block[1].strip().splitlines()]
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    required = [line for line in lines if line and not line.startswith("#")]
    assert sorted(d.replace("'", '"') for d in declared) == sorted(required)


def test_every_requirement_is_imported_or_used():
    # a distribution, and the module that our code imports from it
    modules = {"pyyaml": "yaml", "mlx[cpu]": "mlx", "huggingface-hub": "huggingface_hub"}
    sources = "".join(
        f.read_text()
        for part in ("mlx_gateloop", "app", "convert")
        for f in (ROOT / part).rglob("*.py")
    )
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name = re.split(r"[><=;]", line)[0].strip()
        module = modules.get(name, name.replace("-", "_"))
        if module == "gradio":  # the app's, which is a package without contents so far
            continue
        assert re.search(rf"^\s*(import|from) {module}\b", sources, re.MULTILINE), name
