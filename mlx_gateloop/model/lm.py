"""The GateLoop language model in mlx-lm's conventions (paper section 4, "Model Details").

    tokens -> embedding -> N x (time mixing + skip, channel mixing + skip) -> norm -> head

It is `mlx_lm.models.gateloop` for mlx-lm.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from pydantic.dataclasses import dataclass

from mlx_gateloop.configuration import raises_input_error
from mlx_gateloop.errors import InputError
from mlx_gateloop.model.arguments import STRICT, Count, LayerArgs
from mlx_gateloop.model.gates import projection
from mlx_gateloop.model.layers import Block, Cache, Caches, Marks, Mask, make_norm, marked
from mlx_gateloop.model.linear import Embedding, project

# Keys that mlx-lm and transformers add to a config.json; they have no meaning here.
FOREIGN_KEYS = {
    "_name_or_path", "architectures", "auto_map", "bos_token_id", "dtype", "eos_token_id",
    "model_file", "pad_token_id", "quantization", "quantization_config", "quantize_activations",
    "tokenizer_class", "torch_dtype", "transformers_version", "use_cache",
}  # fmt: skip


@raises_input_error
@dataclass(config=STRICT)
class ModelArgs(LayerArgs):
    """The shape of a model; also its config.json. The defaults are the paper's WikiText-103 model.

    The fields of a layer are those of `LayerArgs`.

    Args:
        vocab_size: Number of input tokens.
        num_hidden_layers: Blocks.
        final_norm: A norm before the head.
        tie_word_embeddings: The head is the embedding.
        num_outputs: Width of the head; None means vocab_size.
        head_bias: The head has a bias; None means bias.

    Raises:
        InputError: A value that cannot be used.

    Examples:
        >>> ModelArgs(hidden_size=64, num_heads=4).state_size
        1024
    """

    model_type: Literal["gateloop"] = "gateloop"
    vocab_size: Count = 50257
    num_hidden_layers: Count = 12
    final_norm: bool = True
    tie_word_embeddings: bool = False
    num_outputs: Count | None = None
    head_bias: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tie_word_embeddings and self.outputs != self.vocab_size:
            expected = f"vocab_size {self.vocab_size}, as tie_word_embeddings is true"
            raise self.invalid("num_outputs", expected)

    @property
    def outputs(self) -> int:
        return self.num_outputs or self.vocab_size

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> "ModelArgs":
        """Read the arguments from a config.json; one warning names all unknown keys."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(config.keys() - known - FOREIGN_KEYS):
            warnings.warn(f"config.json: ignoring unknown {', '.join(unknown)}", stacklevel=2)
        return cls(**{key: value for key, value in config.items() if key in known})


# Parameter counts: see tests/model/test_lm.py. The paper calls its WikiText-103 model "125M"; its
# equations alone give 114.3M; our conjecture, a SiLU gate and an output projection, gives 123.6M.
PRESETS = {
    "memory_horizon": ModelArgs(
        vocab_size=6, num_outputs=51, hidden_size=64, intermediate_size=128, num_hidden_layers=4
    ),
    "wikitext103": ModelArgs(),
    "125m": ModelArgs(output_gate=True),
    # Few layers and an untied head: for the same 4M parameters less arithmetic per token than a
    # tied head with more layers, and it learned more in the same minute on a CPU.
    "demo": ModelArgs(vocab_size=4096, hidden_size=256, intermediate_size=512, num_hidden_layers=3),
}


class GateLoopModel(nn.Module):
    """The embedding, the blocks and the final norm."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        size = args.hidden_size
        self.embed_tokens = Embedding(args.vocab_size, size)
        if not args.tie_word_embeddings:
            # Unit variance, so that the first blocks do not drown the token. A tied embedding keeps
            # MLX's 1 / size, which gives logits of unit variance.
            self.embed_tokens.weight = mx.random.normal((args.vocab_size, size))
        self.dropout = nn.Dropout(args.dropout)
        self.layers = [Block(args) for _ in range(args.num_hidden_layers)]
        self.norm = make_norm(args) if args.final_norm else nn.Identity()
        self.recomputes_blocks = False  # training stores a block's input alone if it is set

    def __call__(self, tokens: mx.array, cache: Caches = None, starts: Marks = None) -> mx.array:
        x, length = self.dropout(self.embed_tokens(tokens)), tokens.shape[1]
        mask: Mask = None
        padding = None
        if cache is not None and hasattr(cache[0], "update_and_fetch"):  # it counts for itself
            mask = cache[0].make_mask(length, return_array=False, window_size=None)
        elif cache is not None:
            mask = padding = padding_mask(cache[0], length)
        mask = mask if starts is None else marked(starts, tokens, cache)
        recomputes = self.recomputes_blocks and cache is None  # a cache would lose its gradient
        for layer, layer_cache in zip(self.layers, cache or [None] * len(self.layers), strict=True):
            block = nn.utils.checkpoint(layer) if recomputes else layer
            x = block(x, mask, layer_cache)
        if cache is not None and padding is not None:
            advance(cache, length)
        return self.norm(x)


def padding_mask(cache: Cache, steps: int) -> mx.array | None:
    """Mark the next tokens that are not padding, bool `[batch, steps]`; None if all are.

    mlx-lm before 0.32 ignores right padding if left padding is known to be absent.
    """
    position, mask = mx.arange(steps), None
    if cache.left_padding is not None:
        mask = position >= cache.left_padding[:, None]
    if cache.lengths is not None:
        ended = position >= cache.lengths[:, None]
        mask = ~ended if mask is None else mask & ~ended
    return mask


def advance(cache: list[Cache], steps: int) -> None:
    """Count the padding of all layers down by `steps` tokens.

    The layers share one array: an `ArraysCache.advance` in each would build a chain of subtractions
    that is never evaluated (mlx-lm#1845).
    """
    lengths, left_padding = (
        None if count is None else mx.maximum(count - steps, 0)
        for count in (cache[0].lengths, cache[0].left_padding)
    )
    for layer_cache in cache:
        layer_cache.lengths, layer_cache.left_padding = lengths, left_padding


class Model(nn.Module):
    """A GateLoop language model.

    Args:
        args: The model's shape.

    Examples:
        >>> model = Model(ModelArgs(vocab_size=100, hidden_size=16, num_hidden_layers=2))
        >>> cache = model.make_cache()
        >>> model(mx.array([[1, 2, 3]]), cache).shape
        (1, 3, 100)
    """

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args = args
        self.model_type = args.model_type
        self.model = GateLoopModel(args)
        if not args.tie_word_embeddings:
            bias = args.bias if args.head_bias is None else args.head_bias
            self.lm_head = projection(nn.Linear, args.hidden_size, args.outputs, bias)

    def __call__(self, tokens: mx.array, cache: Caches = None, starts: Marks = None) -> mx.array:
        """Compute the logits of the next token.

        Args:
            tokens: `[batch, length]` integers.
            cache: From `make_cache`, updated in place; None starts from a zero state.
            starts: Bool `[batch, length]`: tokens that begin a document, at which the state is
                reset; without padding, and with softmax in a new cache only.

        Returns:
            `[batch, length, num_outputs]` in the weights' dtype.
        """
        head = self.model.embed_tokens if self.args.tie_word_embeddings else self.lm_head
        return project(self.model(tokens, cache, starts), head)[0]

    @property
    def layers(self) -> list[Block]:
        return self.model.layers

    def set_dtype(self, dtype: mx.Dtype, *predicate: Any, **named: Any) -> None:
        """Set the dtype of the weights, and that of the activations with it."""
        super().set_dtype(dtype, *predicate, **named)
        self.model.embed_tokens.dtype = None

    def make_cache(self) -> list[Cache]:
        """Make one mlx-lm cache per layer: a float32 state, or with softmax keys and values.

        With `conv_size` a second entry holds the convolution's last inputs.
        """
        from mlx_lm.models.cache import KVCache

        from mlx_gateloop.model.cache import ArraysCache

        if self.args.mixer == "softmax":
            return [KVCache() for _ in self.layers]
        return [ArraysCache(size=2 if self.args.conv_size else 1) for _ in self.layers]

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Convert weights for this model: float32 state transitions, no head if it is tied."""
        if self.args.tie_word_embeddings:
            weights = {k: w for k, w in weights.items() if not k.startswith("lm_head.")}
        exact = {k: w.astype(mx.float32) for k, w in weights.items() if is_state_transition(k)}
        return weights | exact

    @property
    def cast_predicate(self) -> Callable[[str], bool]:
        """Predicate of weights that `mlx_lm convert --dtype` casts: all but state transitions."""
        return lambda path: not is_state_transition(path)


def is_state_transition(path: str) -> bool:
    """Tell if a parameter belongs to the state transition, which stays float32."""
    names = {"gamma", "theta", "gamma_proj", "theta_proj", "constant"}
    return not names.isdisjoint(path.split("."))


def readable_ids(model: nn.Module) -> int | None:
    """Return how many token ids a model of any type has a row for; None if it embeds none."""
    kinds = nn.Embedding | nn.QuantizedEmbedding  # the largest is that of tokens
    rows = [module.weight.shape[0] for module in model.modules() if isinstance(module, kinds)]
    return max(rows, default=None)


def check_ids(model: nn.Module, ids: Sequence[int]) -> None:
    """Reject token ids without a row in the model's embedding."""
    size = readable_ids(model)
    if size is not None and not 0 <= min(ids) <= max(ids) < size:
        wrong = next(i for i in ids if not 0 <= i < size)
        raise InputError(f"tokens: expected ids from 0 to {size - 1}, got {wrong}")


def require_readable(model: nn.Module, largest: int) -> None:
    """Reject an id beyond a model's embedding: MLX would read other memory there."""
    if (rows := readable_ids(model)) is not None and largest >= rows:
        reason = f"its tokenizer makes token {largest}, its embedding has {rows} rows"
        raise InputError(f"model: {reason}; get both from one source")
