"""The paper's model as a plain PyTorch module: it defines the state dict of the `paper` source."""

import torch
from torch import nn


class Layer(nn.Module):
    """Time mixing by the recurrence, one token after the other, and channel mixing."""

    def __init__(self, size, width, inner, heads, real, fixed, gated, bias):
        super().__init__()
        self.heads = heads
        self.time_norm = nn.LayerNorm(size)
        self.q = nn.Linear(size, width, bias)
        self.k = nn.Linear(size, width, bias)
        self.v = nn.Linear(size, width, bias)
        for name in ("gamma",) if real else ("gamma", "theta"):
            vector = nn.Parameter(torch.randn(width))
            setattr(self, name, vector if fixed else nn.Linear(size, width, bias))
        self.gate = nn.Linear(size, width, bias) if gated else None
        self.out = nn.Linear(width, size, bias) if gated or width != size else None
        self.channel_norm = nn.LayerNorm(size)
        self.fnn = nn.Sequential(
            nn.Linear(size, inner, bias), nn.GELU(), nn.Linear(inner, size, bias)
        )

    def transition(self, name, x):
        value = getattr(self, name, None)
        if value is None:
            return torch.zeros(*x.shape[:2], self.q.out_features)
        return value(x) if isinstance(value, nn.Linear) else value.expand(*x.shape[:2], -1)

    def mix_time(self, x):
        gamma, theta = (self.transition(name, x) for name in ("gamma", "theta"))
        a = torch.polar(gamma.sigmoid(), theta)
        q, k, v, a = (
            z.unflatten(-1, (self.heads, -1)) for z in (self.q(x), self.k(x), self.v(x), a)
        )
        state, ys = 0, []
        for n in range(x.shape[1]):
            state = a[:, n, :, :, None] * state + k[:, n, :, :, None] * v[:, n, :, None, :]
            ys.append(torch.einsum("bhk,bhkv->bhv", q[:, n], state.real))
        y = torch.stack(ys, 1).flatten(-2)
        if self.gate is not None:
            y = nn.functional.silu(self.gate(x)) * y
        return y if self.out is None else self.out(y)

    def forward(self, x):
        x = x + self.mix_time(self.time_norm(x))
        return x + self.fnn(self.channel_norm(x))


class PaperModel(nn.Module):
    """Embedding, layers, norm and head."""

    def __init__(
        self, vocabulary, size, inner, depth, *, width=None, heads=None, outputs=None,
        real=False, fixed=False, gated=False, tied=False, final_norm=True, bias=True,
    ):  # fmt: skip
        super().__init__()
        width = width or size
        options = (inner, heads or width, real, fixed, gated, bias)
        self.embedding = nn.Embedding(vocabulary, size)
        self.layers = nn.Sequential(*(Layer(size, width, *options) for _ in range(depth)))
        self.norm = nn.LayerNorm(size) if final_norm else None
        self.head = None if tied else nn.Linear(size, outputs or vocabulary, bias)

    def forward(self, tokens):
        x = self.layers(self.embedding(tokens))
        if self.norm is not None:
            x = self.norm(x)
        return x @ self.embedding.weight.T if self.head is None else self.head(x)


def paper_model(vocabulary, **options):
    torch.manual_seed(0)
    model = PaperModel(vocabulary, 8, 20, 2, **options).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    return model
