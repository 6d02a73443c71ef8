"""The operator and its scan as fused kernels for Apple and NVIDIA GPUs.

Shared text is in the `.inc` files: `common` (complex numbers, the gate), `position` (which channel
and which steps a thread has), and the kernels `forward`, `backward` and `aggregate`. Each platform
adds a `prelude` of names and an `entry` that says where a thread is.
"""
