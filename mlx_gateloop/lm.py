"""The model under the public name `mlx_gateloop.lm`; the code is in `mlx_gateloop.model`."""

from mlx_gateloop.model.lm import Model, ModelArgs

__all__ = ["Model", "ModelArgs"]
