"""`gateloop bench`: our code and its peers, timed on the same arrays in one run.

torch and jax are imported only where they are timed, and left out if they are not installed.
"""

from mlx_gateloop.bench.report import REPORTS, write_report
from mlx_gateloop.bench.tune import tune_this_gpu

__all__ = ["REPORTS", "tune_this_gpu", "write_report"]
