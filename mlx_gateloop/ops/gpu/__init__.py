"""The operator and its scan as fused kernels for Apple and NVIDIA GPUs.

    operator -> first_use (segments that the GPU takes) -> kernels
             -> heads (K x V states) -> heads_kernels

A kernel joins a platform's `prelude`, the shared `.inc` files and the platform's `entry`. Long
sequences run in parts, side by side; `launch_config` chooses segments and parts.
"""
