"""A fresh Python with the package installed."""

import os
import site
import subprocess
import sys

TORCH = site.getsitepackages([f"{sys.prefix}/torch"])[0]  # see requirements-torch.txt


def python(code, *flags, **environment):
    """Run code; returns what it prints. It must succeed, and write nothing to stderr."""
    how = {"capture_output": True, "text": True, "env": os.environ | environment, "timeout": 600}
    child = subprocess.run([sys.executable, *flags, "-c", code], check=False, **how)
    assert (child.returncode, child.stderr) == (0, "")
    return child.stdout.strip()
