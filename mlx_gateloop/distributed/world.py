"""The ranks of a run, and what they exchange."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from mlx_gateloop.errors import InputError, one_line

T = TypeVar("T")
Limit = Callable[[str], AbstractContextManager[None]]


class PeerLost(RuntimeError):
    """An exchange failed because another rank ended."""


class World:
    """The ranks of a run, or one process, which exchanges nothing; all call the same methods."""

    def __init__(
        self,
        group: mx.distributed.Group | None = None,
        hosts: Sequence[str] = ("this machine",),  # the host of each rank
        limit: Limit = lambda _: nullcontext(),  # limits each exchange; it may end the process
        sequence: int = 1,  # ranks, one after another, that share the sequences of a batch
        overlaps: bool = False,  # sums may be exchanged while the ranks compute, as on GPUs
    ) -> None:
        self._group, self._limit, self.hosts = group, limit, hosts
        self.rank = 0 if group is None else group.rank()
        self.size = 1 if group is None else group.size()
        self._overlaps = overlaps and sequence == 1  # those passes exchange states themselves
        self.sequence, self.groups = sequence, self.size // sequence
        self.number, self.position = divmod(self.rank, sequence)

    def with_sequences_over(self, ranks: int) -> "World":
        if self.size % ranks:
            reason = f"{ranks} ranks for a sequence do not divide the run's {self.size}"
            advice = f"set it to 1, or start a multiple of {ranks} by `gateloop launch -n`"
            raise InputError(f"sequence_parallel: {reason}; {advice}")
        return World(self._group, self.hosts, self._limit, ranks, self._overlaps)

    @property
    def is_first(self) -> bool:
        """True for the rank that writes the run's files and shows its progress."""
        return self.rank == 0

    def part(self, count: int) -> slice:
        """The share of this rank's group in `count` things; shares differ by one at most."""
        return _share(self.number, self.groups, count)

    def part_of_sequence(self, length: int) -> slice:
        return _share(self.position, self.sequence, length)

    def gather_parts(self, array: mx.array) -> mx.array:
        """Gather `[...]` to `[sequence, ...]` within a graph, see `ops.over_ranks`."""
        gathered = mx.distributed.all_gather(array[None], group=self._group)
        first = self.number * self.sequence
        return gathered[first : first + self.sequence]

    def sum(self, array: mx.array, purpose: str) -> mx.array:
        """Sum an array over the ranks, the same on all to the last bit; errors name the purpose."""
        if self.size == 1:
            return array
        mx.eval(array)  # the limit is one of waiting, not of computing
        return self._exchange(mx.distributed.all_sum, array, purpose)

    def start_sum(self, array: mx.array) -> mx.array:
        """The sum of an array over the ranks, in a graph to be evaluated in `waiting`."""
        total = mx.distributed.all_sum(array, group=self._group)
        self.start([total])
        return total

    def start(self, arrays: list[mx.array]) -> None:
        """Start to compute arrays where exchanges overlap with computing."""
        if self._overlaps:
            mx.async_eval(arrays)

    def gather(self, value: object, purpose: str) -> list[Any]:
        """Gather a JSON value of each rank, in their order."""
        if self.size == 1:
            return [value]
        text = json.dumps(value).encode()
        sizes = self._exchange(mx.distributed.all_gather, mx.array([len(text)]), purpose)
        longest = max(np.array(sizes).tolist())
        padded = mx.array(np.frombuffer(text.ljust(longest), np.uint8))
        texts = np.array(self._exchange(mx.distributed.all_gather, padded, purpose))
        return [json.loads(row.tobytes()) for row in texts.reshape(self.size, longest)]

    def broadcast(self, make: Callable[[], T], purpose: str) -> T:
        """The JSON value that the first rank makes, on all ranks."""
        return self.gather(make() if self.is_first else None, purpose)[0]

    def any(self, flag: bool, purpose: str) -> bool:
        """Tell if the flag is set on any rank."""
        return bool(self.sum(mx.array(float(flag)), purpose).item())

    def assert_equal(self, facts: dict[str, Any]) -> None:
        """Require the same JSON values on all ranks; the error names the first that differs."""
        first, *others = self.gather(facts, "comparison of the ranks")
        for rank, other in enumerate(others, 1):
            for name, value in first.items():
                if other.get(name) != value:
                    one, zero = (f"rank {n} on {self.hosts[n]}" for n in (rank, 0))
                    difference = f"{name}: {other.get(name)}, not {value}"
                    raise InputError(f"{one} differs from {zero} in its {difference}")

    @contextmanager
    def waiting(self, purpose: str) -> Iterator[None]:
        """Limit a block that waits for other ranks; raise PeerLost if one has ended."""
        try:
            with self._limit(purpose):
                yield
        except RuntimeError as error:
            if self.size == 1:
                raise
            raise PeerLost(f"a rank was lost in the {purpose} ({one_line(error)})") from None

    def computing(self) -> AbstractContextManager[None]:
        """Limit a block that computes on sequences, and so waits if ranks share them."""
        return self.waiting("pass over the sequences") if self.sequence > 1 else nullcontext()

    def _exchange(
        self, collective: Callable[..., mx.array], array: mx.array, purpose: str
    ) -> mx.array:
        with self.waiting(purpose):
            result = collective(array, group=self._group)
            mx.eval(result)
        return result


def _share(number: int, among: int, count: int) -> slice:
    return slice(number * count // among, (number + 1) * count // among)


ALONE = World()
