"""Machines are shared and MLX compiles on first use: how long an example takes proves nothing."""

from hypothesis import settings

settings.register_profile("patient", parent=settings.get_profile("default"), deadline=None)
settings.load_profile("ci" if settings().derandomize else "patient")
