"""Keep transformers from importing PyTorch, for a second and 180 MB, by importing this first.

For whole programs that compute without it, never for the library: `import torch` fails afterwards.
"""

import sys

sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # Python's way to say: not there
