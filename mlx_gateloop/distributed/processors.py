"""This process's share of a machine's processors."""

import os


def pin_cpus(place: int, places: int) -> None:
    """Keep this process to its share of the processors that it may use (Linux).

    An operation of ours starts a thread for each of them; those of several processes would wait for
    each other. Threads that there are already keep what they had. A container's quota is not seen.

    Args:
        place: The number of the share, from 0.
        places: Number of shares.
    """
    if hasattr(os, "sched_setaffinity"):
        every = sorted(os.sched_getaffinity(0))
        share = every[place * len(every) // places : (place + 1) * len(every) // places]
        os.sched_setaffinity(0, share or [every[place % len(every)]])
