"""The operator and its scan as fused kernels for Apple and NVIDIA GPUs.

Shared text is in the `.inc` files: `common` (complex numbers, the gate), `position` (a thread's
channel and steps), and the kernels `forward`, `backward` and `aggregate`. Each platform adds a
`prelude` of names and an `entry` with a thread's position in the grid.

    operator -> first_use (segments that the GPU takes) -> kernels
             -> heads (K x V states) -> heads_kernels

Long sequences run in parts, side by side; `launch_config` chooses segments and parts.

The kernels of heads are `heads_forward` and `heads_backward`, with `heads` and `heads_position`.
"""
