"""Scripts that are in no package."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def load_script(path):
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module
