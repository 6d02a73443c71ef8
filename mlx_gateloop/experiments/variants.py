"""The models that experiments compare, by name; light to import, for the command's parser."""

# Models with heads, whose number is tuned, mix their outputs; the others are max-headed.
HEADS = {"num_heads": 4, "output_projection": True}
# What the published models have after or around their operator, as far as the layer has it.
PUBLISHED = {"query": "constant", "input_gate": "none", "output_projection": True}
GATED_HEADS = {"sub_norm": "head", "output_gate": True, **HEADS}  # as RetNet and GLA have them
HGRN2: dict[str, object] = {"model_type": "hgrn2", "expand_ratio": None, "num_heads": 4}
# The fields of `ModelArgs` that each changes; the rest, where a model has it, is the same for all.
VARIANTS: dict[str, dict[str, object]] = {
    "data_controlled": {"transition": "data_controlled"},
    "fixed": {"transition": "fixed"},
    "real_gates": {"transition": "data_controlled", "gate": "real"},
    "published_start": {"transition": "data_controlled", "longest_half_life": None},
    "with_heads": {"transition": "data_controlled", **GATED_HEADS},
    "with_convolution": {"transition": "data_controlled", "conv_size": 4},
    "linear_attention": {"transition": "linear_attention", "sub_norm": True, **HEADS},
    "retnet": {"transition": "retnet", **GATED_HEADS},
    "lru": {"transition": "lru"},
    "s4d_lin": {"transition": "s4d_lin"},
    "s4d_inv": {"transition": "s4d_inv"},
    "s5": {"transition": "s5"},
    "lru_as_published": {"transition": "lru", **PUBLISHED},
    "s4d_lin_as_published": {"transition": "s4d_lin", **PUBLISHED},
    "s4d_inv_as_published": {"transition": "s4d_inv", **PUBLISHED},
    "s5_as_published": {"transition": "s5", **PUBLISHED},
    "gla": {"model_type": "gla", "num_heads": 4},
    "hgrn2": HGRN2,
    "gla_with_convolution": {"model_type": "gla", "num_heads": 4, "use_short_conv": True},
    "hgrn2_with_convolution": {**HGRN2, "use_short_conv": True},
    "mamba2": {"model_type": "ssd", "num_heads": 4, "state_width": 16},
    "softmax": {"mixer": "softmax", "transition": "none", **HEADS},
    "softmax_rotary": {"mixer": "softmax", "transition": "none", "rope_theta": 10000.0, **HEADS},
    "softmax_data_controlled": {"mixer": "softmax", "transition": "data_controlled", **HEADS},
}
REFERENCE = "data_controlled"  # the others are compared with it
TITLES = {
    "data_controlled": "data-controlled",
    "published_start": "data-controlled, published start",
    "real_gates": "real gates",
    "with_heads": "data-controlled, with heads",
    "with_convolution": "data-controlled, with a convolution",
    "linear_attention": "linear attention",
    "retnet": "RetNet",
    "lru": "LRU",
    "s4d_lin": "S4D-Lin",
    "s4d_inv": "S4D-Inv",
    "s5": "S5",
    "gla": "GLA",
    "hgrn2": "HGRN2",
    "gla_with_convolution": "GLA, with a convolution",
    "hgrn2_with_convolution": "HGRN2, with a convolution",
    "mamba2": "Mamba-2",
    "softmax": "softmax without positions",
    "softmax_rotary": "softmax, rotary positions",
    "softmax_data_controlled": "softmax, data-controlled positions",
}


def title(model: str) -> str:
    """The name of a model in tables for readers; options of its training may follow a comma."""
    name, comma, options = model.partition(",")
    base = name.removesuffix("_as_published")
    published = ", as published" if base != name else ""
    return TITLES.get(base, base) + published + comma + options
