"""The models to choose from: directories inside the given folders, and hub ids where allowed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import mlx.nn as nn

from mlx_gateloop.configuration import read_json
from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.io.checks import check
from mlx_gateloop.io.models import HUB_ID, LOADED, load_weights
from mlx_gateloop.model.lm import Model, ModelArgs
from mlx_gateloop.watch import Instrumented

from ..server.isolation import Bounds, InProcess, Isolated
from .caches import Layout, layout
from .files import SUMS, compare, fingerprint_of, is_inside, refuse_code, sha256
from .states import Boundary

MOST_OF_A_KIND = 60  # characters


@dataclass(frozen=True)
class ModelInfo:
    """Kind and sizes of a model, from its config.json; the sizes are known of our models only."""

    kind: str  # model_type
    layers: int
    chats: bool  # has a chat template
    vocab_size: int = 0
    channels: int = 0
    heads: int = 0
    planes: int = 0  # of our states: 2 if the transition is complex
    transition: str = ""
    mixer: str = ""

    @property
    def state_shape(self) -> tuple[int, ...] | None:
        """Shape of one layer's state, `[1, planes, ...]`; None if only the model knows it."""
        if self.mixer != "gate_loop":
            return None
        size = self.channels // self.heads
        return 1, self.planes, *([self.channels] if size == 1 else [self.heads, size, size])


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in memory."""

    model: nn.Module
    instrumented: Instrumented  # the same, for recordings
    layout: Layout  # shapes of its cache entries
    tokenizer: InProcess | Isolated  # in a process of its own if the model is not trusted
    fingerprint: str  # SHA-256 of the files that determine its output

    @property
    def vocabulary(self) -> int:
        """Tokens that it can read; models of other types write the same."""
        is_ours = isinstance(self.model, Model)
        return self.model.args.vocab_size if is_ours else self.layout.outputs

    def fits(self, boundary: Boundary) -> bool:
        """Return False for a state that the model cannot go on from."""
        return self.layout.fits(boundary) and max(boundary.ids) < self.vocabulary


class Models:
    """Finds and loads models, never outside the folders and without running their code.

    Args:
        roots: Folders of model directories; one may itself be a model directory.
        allow_hub: True if "owner/name" may be downloaded from the Hugging Face hub.
        trusted: A folder of models whose tokenizers and chat templates run in this process; those
            of all others run in processes of their own.
        bounds: Limits of these processes.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        allow_hub: bool = False,
        trusted: Path | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.roots = [Path(root).resolve() for root in roots]
        self.allow_hub, self.bounds = allow_hub, bounds or Bounds()
        self.trusted = trusted and trusted.resolve()
        for root in self.roots:
            if not root.is_dir():
                raise InputError(f"{root}: no such folder; give one that holds model directories")

    def names(self) -> list[str]:
        """Return the names of the models, in the order of the folders."""
        return list(dict.fromkeys(name for name, _ in self._listed()))

    def info(self, name: str) -> ModelInfo:
        """Read the sizes of a model; a model of the hub must have been fetched."""
        path, _ = self._path(name)
        with _called(name, path):
            config = read_json(path / "config.json")
            kind, chats = str(config.get("model_type"))[:MOST_OF_A_KIND], _chats(path)
        if kind != "gateloop":
            inner = config.get("text_config")
            layers = (inner if isinstance(inner, dict) else config).get("num_hidden_layers")
            return ModelInfo(kind, layers if isinstance(layers, int) else 0, chats)
        try:
            args = ModelArgs.from_dict(config)
        except InputError as error:
            raise InputError(f"{name}: {one_line(error)}") from error
        sizes = args.vocab_size, args.width, args.heads, args.state_planes
        return ModelInfo(kind, args.num_hidden_layers, chats, *sizes, args.transition, args.mixer)

    def fingerprint(self, name: str) -> str:
        """Compute the SHA-256 of the files that determine the model's output."""
        return fingerprint_of(self._checked(name)[1])

    def load(self, name: str) -> LoadedModel:
        """Load a model, after checking its files against its SHA256SUMS if it has one.

        Raises:
            InputError: There is no such model, one of its files lies outside the folders or was
                changed, it would run code of its own, or it is larger than the memory.
        """
        path, digests = self._checked(name)
        with _called(name, path):
            model = load_weights(path)
        if isinstance(model, Model) and model.args.outputs > model.args.vocab_size:
            raise InputError(f"{name}: draws tokens that it cannot read; not a model of text")
        is_trusted = self.trusted is not None and path.is_relative_to(self.trusted)
        tokenizer = InProcess(str(path)) if is_trusted else Isolated(str(path), self.bounds)
        try:
            form = layout(model)
        except Exception as error:  # of a model that is none of text, or whose sizes do not fit
            raise InputError(f"{name}: cannot be run: {one_line(error)}") from error
        return LoadedModel(model, Instrumented(model), form, tokenizer, fingerprint_of(digests))

    def key(self, name: str) -> str:
        """Return what is the same for all names of a model, such as "demo" and "./demo"."""
        return str(self._local(name) or name)

    def is_here(self, name: str) -> bool:
        """Return True if the model is in one of the folders."""
        return self._local(name) is not None

    def fetch(self, name: str) -> Path:
        """Download a model of the hub, unless it is here; return its directory."""
        self.check(name)
        return self._local(name) or _snapshot(name, is_here=False)

    def check(self, name: str) -> None:
        """Raise InputError unless there may be a model of this name; reads no weights."""
        if self._local(name) is None and not self._is_hub_id(name):
            raise self._unknown(name)

    def _checked(self, name: str) -> tuple[Path, dict[str, str]]:
        path, roots = self._path(name)
        for file in path.rglob("*"):
            if not is_inside(file, roots):
                raise InputError(f"{name}/{file.relative_to(path)}: leads out of the models folder")
        with _called(name, path):
            refuse_code(name, path)
            check(path)
        digests = {file.name: sha256(file) for kind in LOADED for file in path.glob(kind)}
        if (path / SUMS).exists():
            compare(name, path, digests)
        return path, digests

    def _path(self, name: str) -> tuple[Path, list[Path]]:
        """Return the model's directory, and the folders that its files may lie in."""
        if (path := self._local(name)) is not None:
            return path, self.roots
        if not self._is_hub_id(name):
            raise self._unknown(name)
        path = _snapshot(name, is_here=True)
        return path, [path.parents[1]]  # snapshots are links to files beside them

    def _is_hub_id(self, name: str) -> bool:
        return self.allow_hub and bool(HUB_ID.fullmatch(str(name))) and ".." not in name

    def _local(self, name: str) -> Path | None:
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 500:
            return None
        listed = dict(reversed(list(self._listed())))
        for path in [listed.get(name), *(root / name for root in self.roots)]:
            if path is not None and _is_model(path, self.roots):
                return path.resolve()
        return None

    def _listed(self) -> Iterator[tuple[str, Path]]:
        for root in self.roots:
            for path in [root, *sorted(root.iterdir())]:
                if _is_model(path, self.roots):
                    yield path.name, path

    def _unknown(self, name: str) -> InputError:
        known = ", ".join(self.names()) or "none, the models folders are empty"
        return InputError(f"model: there is no {str(name)[:100]!r}; choose one of: {known}")


def _is_model(path: Path, roots: Sequence[Path]) -> bool:
    try:
        return is_inside(path, roots) and (path / "config.json").is_file()
    except OSError:  # a name that is too long
        return False


def _chats(path: Path) -> bool:
    """Tell if a model has a chat template; older ones have it among the tokenizer's settings."""
    if (path / "chat_template.jinja").exists():
        return True
    settings = path / "tokenizer_config.json"
    return settings.exists() and bool(read_json(settings).get("chat_template"))


def _snapshot(name: str, is_here: bool) -> Path:
    from huggingface_hub import snapshot_download

    try:
        patterns = [*LOADED, SUMS]
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=is_here))
    except Exception as error:  # the network, the hub's answer, the disk
        raise InputError(f"{name}: cannot be fetched from the hub: {one_line(error)}") from error


@contextmanager
def _called(name: str, path: Path) -> Iterator[None]:
    """Name a model in errors as its user does, without the folders of this machine."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(str(path), name)) from error
