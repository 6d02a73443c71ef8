"""The paper's whole language model on one screen: parallel over a text, or token by token.

h_n = a_n h_{n-1} + k_n v_n,   y_n = q_n Re(h_n),   a_n = sigmoid(gamma_n) exp(i theta_n)

Weights have the names and shapes of `mlx_gateloop.Model`, and tests/docs/test_minimal.py compares
the two. MLX's complex numbers are slow on a CPU, so a leading axis of 2 holds real and imaginary
parts: transitions and states are `[2, batch, length, channels]`, everything else
`[batch, length, channels]`. The package adds fast kernels, padding, options and training.
"""

import json
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn

Recurrence = Callable[[mx.array, mx.array, mx.array], mx.array]


def multiply(a: mx.array, b: mx.array) -> mx.array:
    """The complex product, real and imaginary parts on the leading axis."""
    return mx.stack([a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]])


def step_by_step(a: mx.array, x: mx.array, h: mx.array) -> mx.array:
    """All states h_n = a_n h_{n-1} + x_n from h on (paper, eq. 7): O(length) steps."""
    states = []
    for n in range(a.shape[2]):
        h = multiply(a[:, :, n], h) + x[:, :, n]
        states.append(h)
    return mx.stack(states, axis=2)


def scan(a: mx.array, x: mx.array, h: mx.array) -> mx.array:
    """The same states in O(log length) steps, by the paper's associative operator (eq. 13):
    (a_1, x_1) followed by (a_2, x_2) is (a_1 a_2, a_2 x_1 + x_2)."""
    reach = 1  # every position has combined this many steps, itself included
    while reach < a.shape[2]:
        late_a = a[:, :, reach:]
        late_x = multiply(late_a, x[:, :, :-reach]) + x[:, :, reach:]
        x = mx.concatenate([x[:, :, :reach], late_x], axis=2)
        a = mx.concatenate([a[:, :, :reach], multiply(a[:, :, :-reach], late_a)], axis=2)
        reach *= 2
    return multiply(a, h[:, :, None]) + x


class TimeMixing(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "gamma_proj", "theta_proj"):
            self[name] = nn.Linear(size, size)

    def __call__(self, x: mx.array, h: mx.array, run: Recurrence) -> tuple[mx.array, mx.array]:
        magnitude, phase = mx.sigmoid(self.gamma_proj(x)), self.theta_proj(x)
        a = mx.stack([magnitude * mx.cos(phase), magnitude * mx.sin(phase)])
        kv = self.k_proj(x) * self.v_proj(x)  # real: its imaginary part is 0
        states = run(a, mx.stack([kv, mx.zeros_like(kv)]), h)
        return self.q_proj(x) * states[0], states[:, :, -1]


class ChannelMixing(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(size, inner), nn.Linear(inner, size)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(nn.gelu(self.up_proj(x)))


class Block(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.time_norm, self.time_mixing = nn.LayerNorm(size), TimeMixing(size)
        self.channel_norm, self.channel_mixing = nn.LayerNorm(size), ChannelMixing(size, inner)

    def __call__(self, x: mx.array, h: mx.array, run: Recurrence) -> tuple[mx.array, mx.array]:
        y, h = self.time_mixing(self.time_norm(x), h, run)
        x = x + y
        return x + self.channel_mixing(self.channel_norm(x)), h


class Model(nn.Module):
    def __init__(self, vocab_size: int, size: int, inner: int, layers: int) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(vocab_size, size)
        self.model.layers = [Block(size, inner) for _ in range(layers)]
        self.model.norm = nn.LayerNorm(size)
        self.lm_head = nn.Linear(size, vocab_size)

    def __call__(
        self, tokens: mx.array, states: list[mx.array] | None = None, run: Recurrence = scan
    ) -> tuple[mx.array, list[mx.array]]:
        """Logits `[batch, length, vocab_size]` of tokens `[batch, length]`, and the states after
        them, one `[2, batch, channels]` a layer: all that has to be kept of the text."""
        x, after = self.model.embed_tokens(tokens), []
        states = states or [mx.zeros((2, len(x), x.shape[-1]))] * len(self.model.layers)
        for block, h in zip(self.model.layers, states, strict=True):
            x, h = block(x, h, run)
            after.append(h)
        return self.lm_head(self.model.norm(x)), after


def load(directory: str | Path) -> Model:
    """A model that `gateloop train` saved with the paper's options, such as the demo model."""
    sizes = json.loads((Path(directory) / "config.json").read_text())
    names = "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"
    model = Model(*(sizes[name] for name in names))
    weights = mx.load(str(Path(directory) / "model.safetensors"))
    if form := sizes.get("quantization"):  # not the transitions
        nn.quantize(model, **form, class_predicate=lambda path, _: f"{path}.scales" in weights)
    model.load_weights(list(weights.items()))
    return model


def generate(model: Model, prompt: list[int], count: int) -> list[int]:
    """The likeliest continuation: the prompt by one scan, then token by token from its state."""
    logits, states = model(mx.array([prompt]))
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(int(mx.argmax(logits[0, -1])))
        logits, states = model(mx.array([tokens[-1:]]), states, step_by_step)
    return tokens
