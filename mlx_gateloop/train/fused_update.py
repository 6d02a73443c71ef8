"""Small arrays joined to one: an operation on each would take longer to launch than to compute."""

from itertools import accumulate

import mlx.core as mx

JOINED = "joined"
SMALL = 2**14  # elements; copying that many takes less time than a launch

Named = dict[str, mx.array]


def join(arrays: Named) -> Named:
    """Replace the small arrays by one vector of them all, in their order, named `JOINED`."""
    small = [array.flatten() for array in arrays.values() if array.size < SMALL]
    large = {name: array for name, array in arrays.items() if array.size >= SMALL}
    return large | ({JOINED: mx.concatenate(small)} if small else {})


def split(joined: Named, like: Named) -> Named:
    """Undo `join`.

    Args:
        joined: its result.
        like: arrays with the names, the order and the shapes of its argument.
    """
    sizes = [array.size for array in like.values() if array.size < SMALL]
    parts = iter(mx.split(joined[JOINED], list(accumulate(sizes))[:-1]) if sizes else [])
    return {
        name: next(parts).reshape(array.shape) if array.size < SMALL else joined[name]
        for name, array in like.items()
    }
