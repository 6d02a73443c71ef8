"""`convert` lies in the repository and in no wheel: it is found there, after all that is installed.

This directory has another name, or it would be a second `convert`.
"""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parent.parent.parent)
if ROOT not in sys.path:
    sys.path.append(ROOT)
