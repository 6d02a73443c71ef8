"""Weights from other formats; it imports `mlx_gateloop`, and nothing imports it."""
