"""The model that a run starts with."""

import mlx.core as mx
import mlx.nn as nn

from mlx_gateloop.model.gates import StateTransitionLinear
from mlx_gateloop.train import TrainConfig
from mlx_gateloop.train.setup import make_model


def test_the_weights_of_linear_layers_are_scaled_but_not_the_transitions():
    config = {"steps": 1, "model": {"hidden_size": 8, "intermediate_size": 8}}
    ours, smaller = (
        make_model(TrainConfig.load(None, config | {"initial_scale": scale}), 16)
        for scale in (1.0, 0.5)
    )
    pairs = list(zip(ours.named_modules(), smaller.named_modules(), strict=True))
    assert sum(isinstance(layer, nn.Linear) for (_, layer), _ in pairs) > 10
    for (name, layer), (_, other) in pairs:
        scaled = isinstance(layer, nn.Linear) and not isinstance(layer, StateTransitionLinear)
        factor = 0.5 if scaled else 1.0
        if isinstance(layer, nn.Linear | nn.Embedding | nn.LayerNorm):
            assert mx.array_equal(factor * layer.weight, other.weight), name
