"""Runs over several processes and machines, on MLX's distributed engine."""
