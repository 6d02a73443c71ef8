"""Memory that MLX takes, the same however busy the machine is, and that this process has taken."""

import resource
import sys

import mlx.core as mx

from mlx_gateloop.bench.measure import peak_bytes


def most_resident():
    """The most bytes that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 * (sys.platform != "darwin")


def peak_memory(function, *arrays):
    """Most bytes in use beyond the arrays while a function of them is evaluated."""
    mx.eval(arrays)
    mx.synchronize()  # the thread that computed them holds temporary arrays for a moment
    limit = mx.set_memory_limit(1)  # MLX then waits for each operation before it starts the next
    try:
        return peak_bytes(lambda: mx.eval(function(*arrays)))
    finally:
        mx.set_memory_limit(limit)
