"""Dynamic loss scaling: float16 gradients as large as float16 permits.

Source of the method: Micikevicius et al., Mixed Precision Training (arXiv 1710.03740), section 3.2.
Source of the constants: the defaults of torch.amp.GradScaler, and DeepSpeed's `min_loss_scale`.
"""

INITIAL = 2.0**16
GROWTH = 2.0  # after INTERVAL finite steps
BACKOFF = 0.5  # after a step that overflowed
INTERVAL = 2000
LEAST = 1.0  # gradients that are not finite at any scale do not wear it down to 0


def next_scale(scale: float, steps: int, finite: bool) -> tuple[float, int]:
    """Return the scale of the next step, and the number of steps since it was last chosen."""
    if not finite:
        return max(BACKOFF * scale, LEAST), 0
    if steps + 1 == INTERVAL:
        return GROWTH * scale, 0
    return scale, steps + 1
