"""The available models: directories in the given folders, and hub ids if allowed."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.nn as nn

from mlx_gateloop.configuration import read_json
from mlx_gateloop.errors import InputError
from mlx_gateloop.io.checks import check
from mlx_gateloop.io.files import sha256
from mlx_gateloop.io.models import HUB_ID, LOADED, load_weights, refusing
from mlx_gateloop.model.lm import Model, ModelArgs
from mlx_gateloop.model.registered import MODELS
from mlx_gateloop.watch import Instrumented

from ..server.isolation import Bounds, InProcess, Isolated
from .caches import Layout, layout
from .files import SUMS, is_inside, reject_code, verify_checksums
from .prefix_cache import PrefixState

MAX_KIND_CHARACTERS = 60
MAX_CARD = 20_000  # characters
NOT_IN_CARD = ("The first", "How to make")  # sections for those who make the model


@dataclass(frozen=True)
class ModelInfo:
    """Type and sizes of a model from its config.json; most sizes are set for our models only."""

    kind: str  # model_type
    layers: int
    chats: bool  # has a chat template
    heads: int = 0
    channels: int = 0
    transition: str = ""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in memory."""

    model: nn.Module
    instrumented: Instrumented  # the same model, for recordings
    layout: Layout  # the layout of its caches
    tokenizer: InProcess | Isolated  # isolated unless the model is trusted
    fingerprint: str  # SHA-256 of the files that determine its output
    waiting: list[Any] = field(default_factory=list)  # steps of runs, see `reader`
    hashes: dict[str, str] = field(default_factory=dict)  # see `state_files`

    @property
    def is_ours(self) -> bool:
        """True for the types of this package, whose batches compute what single runs do."""
        return getattr(self.model, "model_type", None) in MODELS

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model can read; other types use their output size."""
        return self.model.args.vocab_size if isinstance(self.model, Model) else self.layout.outputs

    def fits(self, prefix: PrefixState) -> bool:
        """Return True if the model can continue from this state."""
        return self.layout.fits(prefix) and max(prefix.ids, default=0) < self.vocabulary


class Models:
    """Finds and loads models inside the given folders; never runs code of a model.

    Args:
        roots: Folders of model directories; one may itself be a model directory. Of models with
            one name the last is used.
        allow_hub: True if "owner/name" may be downloaded from the Hugging Face hub.
        trusted: Folder of models with trusted tokenizers and chat templates, which run in this
            process; those of other models run in separate processes.
        bounds: Limits of the separate processes.
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
        self._fingerprints: dict[str, tuple[object, str]] = {}
        for root in self.roots:
            if not root.is_dir():
                raise InputError(f"{root}: no such folder; give one that holds model directories")

    def names(self) -> list[str]:
        """Return the names of the models in the order of the folders."""
        return list(dict.fromkeys(name for name, _ in self._listed()))

    def state_files(self) -> dict[str, Path]:
        """Return the state files in the folders, by name."""
        found = [path for root in self.roots for path in sorted(root.glob("*.state"))]
        return {path.name: path for path in found if is_inside(path, self.roots)}

    def info(self, name: str) -> ModelInfo:
        """Read the sizes of a model; fetch a model of the hub first."""
        path, _ = self._path(name)
        with _naming(name, path):
            config = read_json(path / "config.json")
            kind, chats = str(config.get("model_type"))[:MAX_KIND_CHARACTERS], _chats(path)
        if kind != "gateloop":
            inner = config.get("text_config")
            layers = (inner if isinstance(inner, dict) else config).get("num_hidden_layers")
            counts = (n if isinstance(n, int) else 0 for n in (layers, config.get("num_heads")))
            return ModelInfo(kind, next(counts), chats, next(counts))
        with refusing(name, "cannot be read"):
            args = ModelArgs.from_dict(config)
        sizes = args.num_hidden_layers, chats, args.heads, args.width
        return ModelInfo(kind, *sizes, args.transition)

    def card(self, name: str) -> str:
        """Return the card of a model, its README.md as Markdown without HTML and pictures."""
        try:
            text = (self._path(name)[0] / "README.md").read_text("utf-8")[:MAX_CARD]
        except (OSError, UnicodeDecodeError, InputError):
            return "This model has no card."
        intro, *sections = text.split("\n## ")
        kept = [part for part in sections if not part.startswith(NOT_IN_CARD)]
        return "\n## ".join([intro, *kept]).replace("<", "&lt;").replace("![", "[")

    def is_trusted(self, name: str) -> bool:
        """Return True for a model that comes with the app."""
        path = self._local(name)
        return bool(path and self.trusted and path.is_relative_to(self.trusted))

    def fingerprint(self, name: str) -> str:
        """Return the SHA-256 of the files that determine the model's output."""
        known, fingerprint = self._fingerprints.get(self.key(name), ("", ""))
        return fingerprint if self._times(name) == known else self._hashed(name)[1]

    def load(self, name: str) -> LoadedModel:
        """Verify a model's SHA256SUMS, if it has them, and load it.

        Raises:
            InputError: The model does not exist, has files outside the folders or with wrong
                checksums, contains code, or does not fit into memory.
        """
        path, fingerprint = self._hashed(name)
        with _naming(name, path):
            model = load_weights(path)
        if isinstance(model, Model) and model.args.outputs > model.args.vocab_size:
            raise InputError(f"{name}: has more outputs than inputs; not a language model")
        is_trusted = self.is_trusted(name)
        tokenizer = InProcess(str(path)) if is_trusted else Isolated(str(path), self.bounds)
        with refusing(name, "cannot be run"):  # not a language model, or sizes that do not fit
            form = layout(model)
        return LoadedModel(model, Instrumented(model), form, tokenizer, fingerprint)

    def key(self, name: str) -> str:
        """Return the same key for all names of a model, such as "demo" and "./demo"."""
        return str(self._local(name) or name)

    def is_local(self, name: str) -> bool:
        return self._local(name) is not None

    def fetch(self, name: str) -> Path:
        """Download a model from the hub if it is not local; return its directory."""
        return self._path(name, download=True)[0]

    def check(self, name: str) -> None:
        """Raise InputError unless a model of this name may exist; reads no weights."""
        is_hub_id = self.allow_hub and HUB_ID.fullmatch(str(name)) and ".." not in name
        if self._local(name) is None and not is_hub_id:
            known = ", ".join(self.names()) or "(the models folders are empty)"
            raise InputError(f"model: there is no {str(name)[:100]!r}; choose one of: {known}")

    def _times(self, name: str) -> tuple[Path, list[tuple[str, int]]]:
        path, _ = self._path(name)
        files = (file for file in sorted(path.iterdir()) if file.is_file())
        return path, [(file.name, file.stat().st_mtime_ns) for file in files]

    def _hashed(self, name: str) -> tuple[Path, str]:
        """Check a model's files and return its fingerprint, which stays known: hashing is slow."""
        times, (path, roots) = self._times(name), self._path(name)
        for file in path.rglob("*"):
            if not is_inside(file, roots):
                raise InputError(f"{name}/{file.relative_to(path)}: is outside the models folder")
        with _naming(name, path):
            reject_code(name, path)
            check(path)
        digests = {file.name: sha256(file) for kind in LOADED for file in path.glob(kind)}
        if (path / SUMS).exists():
            verify_checksums(name, path, digests)
        fingerprint = hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
        self._fingerprints[self.key(name)] = times, fingerprint
        return path, fingerprint

    def _path(self, name: str, download: bool = False) -> tuple[Path, list[Path]]:
        """Return the model's directory, and the folders that may contain its files."""
        self.check(name)
        if (path := self._local(name)) is not None:
            return path, self.roots
        from huggingface_hub import snapshot_download

        kept = [*LOADED, SUMS]
        with refusing(name, "cannot be downloaded from the hub"):
            path = Path(snapshot_download(name, allow_patterns=kept, local_files_only=not download))
        return path, [path.parents[1]]  # a snapshot links to files in a sibling folder

    def _local(self, name: str) -> Path | None:
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 500:
            return None
        listed = dict(self._listed())
        for path in [listed.get(name), *(root / name for root in reversed(self.roots))]:
            if path is not None and _is_model(path, self.roots):
                return path.resolve()
        return None

    def _listed(self) -> Iterator[tuple[str, Path]]:
        for root in self.roots:
            for path in [root, *sorted(root.iterdir())]:
                if _is_model(path, self.roots):
                    yield path.name, path


def _is_model(path: Path, roots: Sequence[Path]) -> bool:
    try:
        return is_inside(path, roots) and (path / "config.json").is_file()
    except OSError:  # a name that is too long
        return False


def _chats(path: Path) -> bool:
    """Return True if a model has a chat template; older ones keep it in the tokenizer config."""
    if (path / "chat_template.jinja").exists():
        return True
    settings = path / "tokenizer_config.json"
    return settings.exists() and bool(read_json(settings).get("chat_template"))


@contextmanager
def _naming(name: str, path: Path) -> Iterator[None]:
    """Replace the model's path in errors by its name, which hides folders of this machine."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(str(path), name)) from error
