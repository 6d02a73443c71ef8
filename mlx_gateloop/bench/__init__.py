"""`gateloop bench`: our backends, plain MLX and mlx-lm's models, timed on the same arrays."""
