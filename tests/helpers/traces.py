"""Traces of given columns."""

import numpy as np

from mlx_gateloop.watch import Trace
from mlx_gateloop.watch.layer import Columns, Layer


def trace_with(columns, window=1000, max_bytes=64 << 20, at_once=64):
    layers = [Layer(f"layers.{layer}.x", "test") for layer in range(columns.shape[1])]
    trace = Trace(layers, max_bytes, window)
    for at in range(0, columns.shape[2], at_once):
        part = columns[:, :, at : at + at_once].astype(np.float32)
        trace.append([columns_of(*part[:, layer]) for layer in range(len(layers))])
    return trace


def left(trace, layer, token):
    """The share |a_{m+1}| ... |a_n| of each token that each channel keeps."""
    rates = trace.rate(layer, 1, token + 1)[::-1].astype(np.float64)
    return np.exp(-np.concatenate([np.zeros((1, rates.shape[1])), rates.cumsum(0)])[::-1])


def columns_of(rate, phase, query, key):
    """New tokens of one layer, `[tokens, channels]` each; a channel is a head."""
    return Columns(rate, phase, {"query": query[..., None], "key": key[..., None]})
