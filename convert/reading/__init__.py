"""Checkpoint files: finding and reading them."""
