"""The operator and its scan as fused kernels for Apple and NVIDIA GPUs.

Shared text is in the `.inc` files: `common` (complex numbers, the gate), `position` (a thread's
channel and steps), and the kernels `forward`, `backward` and `aggregate`. Each platform adds a
`prelude` of names and an `entry` with a thread's position in the grid.

    operator -> first_use (segments that the GPU takes) -> parts (long sequences) -> kernels
             -> heads (with K x V states: plans, parts) -> heads_kernels

The kernels of heads are `heads_forward` and `heads_backward`, with `heads` and `heads_position`.
"""
