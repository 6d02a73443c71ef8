"""The models of flash-linear-attention in float64 NumPy or torch, from their equations."""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any  # a NumPy array or a torch tensor


def recurrence(q: Array, k: Array, v: Array, a: Array, xp: Any = np) -> Array:
    """Compute y_n = q_n h_n, h_n = a_n h_{n-1} + k_n^T v_n, of `[batch, length, heads, size]`."""
    state, ys = 0, []
    for n in range(q.shape[1]):
        state = a[:, n, :, :, None] * state + k[:, n, :, :, None] * v[:, n, :, None]
        ys.append((q[:, n, :, :, None] * state).sum(-2))
    return xp.stack(ys, 1)


class FlaReference:
    """A model from tokens `[batch, length]` to logits; `weight` returns weights by name."""

    def __init__(self, args: Any, weight: Callable[[str], Array], xp: Any = np) -> None:
        self.args, self.weight, self.xp = args, weight, xp

    def logits(self, tokens: np.ndarray) -> Array:
        x = self._norm(self.hidden_states(tokens)[-1], "model.norm", self.args.norm_eps)
        return self._linear(x, "model.embeddings" if self.args.tie_word_embeddings else "lm_head")

    def hidden_states(self, tokens: np.ndarray) -> list[Array]:
        x, states = self.weight("model.embeddings.weight")[tokens], []
        mix = getattr(self, f"_{self.args.model_type}")
        for layer in range(self.args.num_hidden_layers):
            path = f"model.layers.{layer}"
            x = x + mix(self._norm(x, f"{path}.attn_norm", self.args.norm_eps), f"{path}.attn")
            h = self._norm(x, f"{path}.mlp_norm", self.args.norm_eps)
            gate = self._linear(h, f"{path}.mlp.gate_proj")
            if gate.shape[-1] == 2 * (inner := self.args.inner_size):  # older: both in one matrix
                gate, up = gate[..., :inner], gate[..., inner:]
            else:
                up = self._linear(h, f"{path}.mlp.up_proj")
            x = x + self._linear(self._silu(gate) * up, f"{path}.mlp.down_proj")
            states.append(x)
        return states

    def _gla(self, x: Array, path: str) -> Array:
        args, xp = self.args, self.xp
        q, k, v = (self._projected(x, f"{path}.{letter}_proj") for letter in "qkv")
        if args.use_short_conv:
            q, k, v = map(self._silu, (q, k, v))
        gate = self._linear(self._linear(x, f"{path}.gk_proj.0"), f"{path}.gk_proj.1")
        log_a = xp.log(self._sigmoid(gate + self.weight(f"{path}.gk_proj.1.bias"))) / 16
        if args.clamp_min is not None:
            log_a = xp.maximum(log_a, xp.full_like(log_a, args.clamp_min))
        q = self._split(q, args.num_heads)
        k, v, log_a = (self._split(t, args.kv_heads, args.num_heads) for t in (k, v, log_a))
        y = recurrence(q * q.shape[-1] ** -0.5, k, v, xp.exp(log_a), xp)
        y = self._norm(y, f"{path}.g_norm", args.norm_eps).reshape(*x.shape[:2], -1)
        if args.use_output_gate:
            y = y * self._silu(self._linear(x, f"{path}.g_proj"))
        return self._linear(y, f"{path}.o_proj")

    def _hgrn2(self, x: Array, path: str) -> Array:
        q, f, v = (self._projected(x, f"{path}.{letter}_proj") for letter in "qfi")
        a = self._gate(f, path)
        q, k, v, a = (self._split(t, self.args.heads) for t in (self._silu(q), 1 - a, v, a))
        y = recurrence(q * q.shape[-1] ** -0.5, k, v, a, self.xp).reshape(*x.shape[:2], -1)
        return self._linear(self._norm(y, f"{path}.g_norm", 1e-5), f"{path}.o_proj")

    def _hgrn(self, x: Array, path: str) -> Array:
        i, f = (self._projected(x, f"{path}.{letter}_proj") for letter in "if")
        a = self._gate(f, path)
        k, v, a = (t[..., None] for t in (1 - a, self._silu(i), a))  # a channel is a head
        y = recurrence(self.xp.ones_like(k), k, v, a, self.xp)[..., 0]
        y = self._norm(y, f"{path}.g_norm", self.args.norm_eps)
        return self._linear(y * self._silu(self._linear(x, f"{path}.g_proj")), f"{path}.o_proj")

    def _transformer(self, x: Array, path: str) -> Array:
        args, xp = self.args, self.xp
        heads = {"q": args.num_heads, "k": args.kv_heads, "v": args.kv_heads}
        q, k, v = (
            self._split(self._linear(x, f"{path}.{name}_proj"), groups, args.num_heads)
            for name, groups in heads.items()
        )
        length, size = x.shape[1], q.shape[-1]
        angle = np.outer(np.arange(length), args.rope_theta ** (-2 * np.arange(size // 2) / size))
        cos, sin = (xp.asarray(t)[None, :, None] for t in (np.cos(angle), np.sin(angle)))

        def rotated(t: Array) -> Array:
            a, b = t[..., : size // 2], t[..., size // 2 :]
            return xp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

        scores = xp.einsum("bnhk,bmhk->bhnm", rotated(q), rotated(k)) * size**-0.5
        shares = xp.exp(scores - scores.max()) * xp.asarray(np.tri(length))
        y = xp.einsum("bhnm,bmhv->bnhv", shares / shares.sum(-1)[..., None], v)
        return self._linear(y.reshape(*x.shape[:2], -1), f"{path}.o_proj")

    def _gate(self, f: Array, path: str) -> Array:
        layer = int(path.split(".")[2])
        if layer == 0 or not self.args.use_lower_bound:
            return self._sigmoid(f)
        e = self.xp.exp(self.weight("model.lower_bounds"))
        bound = (e / e.sum(0))[1 : layer + 1].sum(0)
        return bound + (1 - bound) * self._sigmoid(f)

    def _projected(self, x: Array, path: str) -> Array:
        x = self._linear(x, path)
        if not self.args.use_short_conv:
            return x
        weight = self.weight(f"{path.removesuffix('_proj')}_conv1d.weight")
        size = weight.shape[-1]
        x = self.xp.concatenate([self.xp.zeros_like(x)[:, :1]] * (size - 1) + [x], 1)
        length = x.shape[1] - size + 1
        return sum(x[:, i : i + length] * weight[:, 0, i] for i in range(size))

    def _split(self, x: Array, groups: int, heads: int | None = None) -> Array:
        """Split channels into groups, each repeated for all of its heads."""
        x = x.reshape(*x.shape[:2], groups, -1)
        return x[:, :, np.arange(heads or groups) // ((heads or groups) // groups)]

    def _linear(self, x: Array, path: str) -> Array:
        return x @ self.weight(f"{path}.weight").T

    def _norm(self, x: Array, path: str, eps: float) -> Array:
        return x / self.xp.sqrt((x * x).mean(-1)[..., None] + eps) * self.weight(f"{path}.weight")

    def _sigmoid(self, x: Array) -> Array:
        return 1 / (1 + self.xp.exp(-x))

    def _silu(self, x: Array) -> Array:
        return x * self._sigmoid(x)
