"""Lets mlx-lm find the model type `gateloop` without being told.

Installed a second time as the top-level module `_mlx_gateloop_hook`, which a `.pth` file runs when
Python starts: hence no imports here but `sys`, and no work until mlx-lm asks for one of the names.
"""

import sys


class MlxLmFinder:
    """A finder on `sys.meta_path` for the two mlx-lm modules this package has a part in."""

    @staticmethod
    def find_spec(name: str, path=None, target=None):  # type: ignore[no-untyped-def]
        if name in ("mlx_lm.models.gateloop", "mlx_lm.quant.awq"):
            try:
                from mlx_gateloop import _register
            except ImportError:  # the hook outlived the package
                return None
            return _register.find_spec(name, path)
        return None


def install() -> None:
    """Puts the finder on `sys.meta_path`, once, whichever copy of this file comes first."""
    if not any(getattr(f, "__name__", None) == MlxLmFinder.__name__ for f in sys.meta_path):
        sys.meta_path.insert(0, MlxLmFinder)
