"""`gateloop bench`: our code beside its peers, same arrays, one run.

Torch and jax are imported where they are timed and nowhere else; an absent one is left out.
"""

from mlx_gateloop.bench.report import REPORTS, write_report

__all__ = ["REPORTS", "write_report"]
