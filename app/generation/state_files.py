"""State files of `gateloop read` and `gateloop tune`, from which a text or a chat begins."""

import base64
import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

from mlx_gateloop.errors import InputError
from mlx_gateloop.io import states
from mlx_gateloop.model.state import State

from .caches import to_numpy
from .models import LoadedModel, Models
from .prefix_cache import PrefixState
from .run import Steps

MAX_BYTES = 180_000  # in a file that a page sends; a request has at most 256 kB


@dataclass(frozen=True)
class StateFile:
    """A state file, on this machine or in memory."""

    name: str
    content: Path | bytes

    @cached_property
    def key(self) -> str:
        """SHA-256 of the file, a part of the key of states that follow it."""
        content = self.content if isinstance(self.content, bytes) else self.content.read_bytes()
        return hashlib.sha256(content).hexdigest()

    def start(self, loaded: LoadedModel) -> Steps[tuple[PrefixState, State]]:
        """Return the state to begin from, with the last tokens before it, and the file's state.

        Raises:
            InputError: Damaged, or written with another model.
        """
        if not loaded.is_ours:
            raise InputError(f"{self.name}: states of this type of model cannot be continued here")
        if not loaded.hashes:
            vocabulary = yield from loaded.tokenizer.call("get_vocab")
            tokenizer = SimpleNamespace(get_vocab=lambda: vocabulary)
            loaded.hashes.update(states.hashes(loaded.model, tokenizer))
        file = io.BytesIO(self.content) if isinstance(self.content, bytes) else self.content
        state = states.read_hashed(file, loaded.model, loaded.hashes, self.name)
        entries = [entry for layer in state.cache for entry in getattr(layer, "cache", [None])]
        start = PrefixState((), "", tuple(state.last), 0, tuple(map(to_numpy, entries)))
        if not loaded.fits(start):
            raise InputError(f"{self.name}: its caches grow with the text; not continued here")
        return start, state

    def tokens_read(self, loaded: LoadedModel) -> Iterator[int | None]:
        """Read the file; the last value is the number of tokens before its state."""
        yield (yield from self.start(loaded))[1].tokens


def given_file(given: object, models: Models) -> StateFile | None:
    """Find the state file that a page names or sends as [name, size, base64].

    Raises:
        InputError: No such file, or one that is too large.
    """
    if not given:
        return None
    if isinstance(given, str) and given in (known := models.state_files()):
        return StateFile(given, known[given])
    if not isinstance(given, list) or [*map(type, given)] != [str, int, str]:
        raise InputError("state: there is no such state file; choose another")
    name, size, content = Path(given[0]).name[:80], given[1], given[2]
    if size > MAX_BYTES or len(content) > 2 * MAX_BYTES:
        advice = "put the file into the models folder and choose it in the list"
        raise InputError(f"{name}: more than {MAX_BYTES:,} bytes; {advice}")
    try:
        return StateFile(name, base64.b64decode(content, validate=True))
    except ValueError:
        raise InputError(f"{name}: not a state of gateloop read") from None
