"""`gateloop bench`: our code and its installed peers, timed on the same arrays in one run."""

from mlx_gateloop.bench.report import REPORTS, write_report
from mlx_gateloop.bench.tune import tune_this_gpu

__all__ = ["REPORTS", "tune_this_gpu", "write_report"]
