"""The language model: its arguments, state transitions, layers and mlx-lm's conventions."""
