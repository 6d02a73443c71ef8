"""Lets mlx-lm find the model type `gateloop` without being told.

Installed as a top-level module that a `.pth` file runs when Python starts: hence no imports here
but `sys`, and no work until mlx-lm asks for one of the names.
"""

import sys


class MlxLmFinder:
    """A finder on `sys.meta_path` for the two mlx-lm modules that mlx_gateloop has a part in."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name in ("mlx_lm.models.gateloop", "mlx_lm.quant.awq"):
            try:
                from mlx_gateloop import _register
            except ImportError:  # the hook outlived the package
                return None
            return _register.find_spec(name, path)
        return None


sys.meta_path.insert(0, MlxLmFinder)
