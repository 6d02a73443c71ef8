"""The ranks of a run, and what they exchange."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from mlx_gateloop.errors import InputError, one_line

T = TypeVar("T")
Limit = Callable[[str], AbstractContextManager[None]]


class PeerLost(RuntimeError):
    """An exchange that failed, as another rank has gone."""


class World:
    """The ranks of a run: processes that compute a part each and exchange sums.

    All ranks must call the same methods in the same order. A process on its own is a world of one
    rank, which exchanges nothing.

    Args:
        group: MLX's group; None is a process on its own.
        hosts: The machine of each rank.
        limit: A block for each exchange, which ends the process if it takes too long.
    """

    def __init__(
        self,
        group: mx.distributed.Group | None = None,
        hosts: Sequence[str] = ("this machine",),
        limit: Limit = lambda _: nullcontext(),
    ) -> None:
        self._group, self._limit, self.hosts = group, limit, hosts
        self.rank = 0 if group is None else group.rank()
        self.size = 1 if group is None else group.size()

    @property
    def is_first(self) -> bool:
        """True for the rank that writes the run's files and shows its progress."""
        return self.rank == 0

    def part(self, count: int) -> slice:
        """The share of this rank in `count` things; shares differ by one at most."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def sum(self, array: mx.array, purpose: str) -> mx.array:
        """Sum an array over the ranks; the sums are equal on all of them to the last bit.

        Args:
            array: An array of the same shape and dtype on every rank.
            purpose: The exchange, for the message if it fails.

        Raises:
            PeerLost: Another rank has gone.
        """
        if self.size == 1:
            return array
        mx.eval(array)  # the limit is one of waiting, not of computing
        return self._exchange(mx.distributed.all_sum, array, purpose)

    def gather(self, value: object, purpose: str) -> list[Any]:
        """Gather a JSON value of each rank, in their order.

        Raises:
            PeerLost: Another rank has gone.
        """
        if self.size == 1:
            return [value]
        text = json.dumps(value).encode()
        sizes = self._exchange(mx.distributed.all_gather, mx.array([len(text)]), purpose)
        longest = max(np.array(sizes).tolist())
        padded = mx.array(np.frombuffer(text.ljust(longest), np.uint8))
        texts = np.array(self._exchange(mx.distributed.all_gather, padded, purpose))
        return [json.loads(row.tobytes()) for row in texts.reshape(self.size, longest)]

    def first(self, make: Callable[[], T], purpose: str) -> T:
        """The JSON value that the first rank makes, on all ranks."""
        value: T = self.gather(make() if self.is_first else None, purpose)[0]
        return value

    def any(self, flag: bool, purpose: str) -> bool:
        """Tell if the flag is set on any rank."""
        return bool(self.sum(mx.array(float(flag)), purpose).item())

    def agree(self, facts: dict[str, Any]) -> None:
        """Require the same facts on all ranks.

        Args:
            facts: JSON values by name.

        Raises:
            InputError: Another rank's differ from the first one's.
        """
        first, *others = self.gather(facts, "comparison of the ranks")
        for rank, other in enumerate(others, 1):
            for name, value in first.items():
                if other.get(name) != value:
                    raise InputError(
                        f"rank {rank} on {self.hosts[rank]} differs from rank 0 on {self.hosts[0]} "
                        f"in its {name}: {other.get(name)}, not {value}"
                    )

    def _exchange(
        self, collective: Callable[..., mx.array], array: mx.array, purpose: str
    ) -> mx.array:
        try:
            with self._limit(purpose):
                result = collective(array, group=self._group)
                mx.eval(result)
        except RuntimeError as error:
            raise PeerLost(f"a rank was lost in the {purpose} ({one_line(error)})") from None
        return result


ALONE = World()
