"""The chat demo; it imports `mlx_gateloop`, and nothing imports it."""
