"""Scripts that node runs."""

import shutil
import subprocess

import pytest

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="there is no node on this machine")


def node(*words, given=None):
    """Run a script, with a text as its standard input; return what it prints."""
    done = subprocess.run([NODE, *words], input=given, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
