"""A checkpoint from a file, directory or hub id: a state dict without wrappers and prefixes."""

import json
import re
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_gateloop.configuration import read_json
from mlx_gateloop.errors import InputError, one_line, shortened, shown
from mlx_gateloop.io.files import sha256
from mlx_gateloop.io.models import HUB_ID, refusing

from .containers import READERS, Stored, Tree, read

# Keys under which training scripts put a state dict; one of another name must be the only one.
WRAPPERS = ["state_dict", "model_state_dict", "model", "module", "net", "network", "generator"]
WRAPPERS += ["weights", "params"]
FLAX_WRAPPERS = ["params"]
AVERAGED = re.compile("(^|_)ema(_|$)")  # in the key or the prefix of an averaged copy
TAKEN = "took the averaged weights"
# Parts of names, from torch.compile, DeepSpeed, FSDP and activation checkpoints.
ADDED = ("_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# Names in models of ours and of flash-linear-attention, of which "model" is no prefix.
OWN = re.compile(r"model\.(embed_tokens|embeddings|layers\.\d+\.(attn|mlp)(_norm)?)\..+")
SHARD = re.compile(r"-\d+-of-\d+$")
# In a directory, the first of these that exists.
STANDARD_FILES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "flax_model.msgpack",
)


@dataclass
class Checkpoint:
    """A state dict in one or more files, opened one at a time."""

    origin: str  # its name as the user gave it
    files: list[Path]  # weights, all in one directory
    ema: bool = False  # take the averaged copy of the weights
    prefix: str = field(init=False, default="")  # common to all names in the files
    shapes: dict[str, tuple[int, ...]] = field(init=False, default_factory=dict)
    dtypes: dict[str, str] = field(init=False, default_factory=dict)
    notes: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._file_of: dict[str, Path] = {}
        self._averaged: set[Path] = set()  # files of which an averaged copy was taken
        self._open: tuple[Path, dict[str, Stored]] | None = None
        for file in self.files:
            for name, stored in self._tensors(file).items():
                if name in self._file_of:
                    other = self._file_of[name].name
                    raise InputError(f"{file}: {shortened(name)} is in {other} too")
                self._file_of[name] = file
                self.shapes[name], self.dtypes[name] = stored.shape, stored.dtype
        if not self.shapes:
            raise InputError(f"{self.origin}: holds no tensors; give the file with the weights")
        count = len(self.notes)
        self._keep(_prefix(self.shapes, self.ema, self.notes))
        is_averaged = any(TAKEN in note for note in self.notes[count:])
        if self.ema and not (is_averaged or self._averaged == {*self.files}):
            raise InputError(f"{self.origin}: holds no averaged weights; leave --ema out")

    def tensor(self, name: str) -> mx.array:
        """Read a tensor in the dtype it is stored in."""
        file = self._file_of[name]
        try:
            array = self._tensors(file)[self.prefix + name].load()
            mx.eval(array)
        except (OSError, RuntimeError, ValueError) as error:
            what = f"{file}: {shortened(name)}"
            raise InputError(f"{what} cannot be read: {one_line(error)}") from None
        return array

    def part(self, prefix: str) -> "Checkpoint":
        """The tensors with names below a prefix, which is removed."""
        part = copy(self)
        part.origin = f"{self.origin}: {prefix}" if prefix else self.origin
        part._keep(prefix)
        return part

    def _keep(self, prefix: str) -> None:
        """Keep the tensors with names below a prefix, which is removed."""
        start, names = len(prefix), [name for name in self.shapes if name.startswith(prefix)]
        self.prefix += prefix
        self.shapes = {name[start:]: self.shapes[name] for name in names}
        self.dtypes = {name[start:]: self.dtypes[name] for name in names}
        self._file_of = {name[start:]: self._file_of[name] for name in names}

    @property
    def directory(self) -> Path:
        return self.files[0].parent

    @property
    def config(self) -> dict[str, Any]:
        """The config.json beside the weights, empty without one."""
        path = self.directory / "config.json"
        return read_json(path) if path.exists() else {}

    def position(self, name: str) -> int:
        """Sort key of tensors, so that each file is opened once."""
        return self.files.index(self._file_of[name])

    def hashes(self) -> dict[str, str]:
        return {file.name: sha256(file) for file in self.files}

    def _tensors(self, file: Path) -> dict[str, Stored]:
        if self._open is None or self._open[0] != file:
            self._open = None  # free the shard before
            tree, notes = unwrap(read(file), self.ema, file)
            self.notes += [note for note in notes if note not in self.notes]
            self._averaged |= {file for note in notes if TAKEN in note}
            self._open = file, tree
        return self._open[1]


def find(source: str, ema: bool = False) -> Checkpoint:
    """Find a checkpoint by file, directory or hub id `owner/name`; `ema` takes averaged weights."""
    path = Path(source).expanduser()
    if not path.exists():
        if path.suffix in READERS or not HUB_ID.fullmatch(source):
            raise InputError(f"{path}: no such file, directory or hub id")
        path = _download(source)
    if path.is_dir():
        return Checkpoint(source, _files_in(path), ema)
    if path.name.endswith(".index.json"):
        return Checkpoint(source, _shards(path), ema)
    if path.suffix not in READERS:
        raise InputError(f"{path}: not a file of weights; expected {', '.join(READERS)}")
    _refuse_shard(path)
    return Checkpoint(source, [path], ema)


def _files_in(directory: Path) -> list[Path]:
    for file in map(directory.joinpath, STANDARD_FILES):
        if file.exists():
            return _shards(file) if file.suffix == ".json" else [file]
    if found := sorted(file for file in directory.iterdir() if file.suffix in READERS):
        _refuse_shard(found[0])
    if len(found) == 1:
        return found
    names = ", ".join(file.name for file in found[:10])
    problem = f"several files of weights ({names}); give one" if found else "no weights there"
    raise InputError(f"{directory}: {problem}; expected {', '.join(READERS)}")


def _refuse_shard(file: Path) -> None:
    """Refuse a single part of a model, which may look like a smaller model."""
    if SHARD.search(file.stem):
        raise InputError(f"{file}: one of several parts; give their index, *.index.json beside it")


def _shards(index: Path) -> list[Path]:
    with refusing(str(index), "not an index of shards"):
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        shards = [index.parent / name for name in sorted(names)]
    beside = set(index.parent.iterdir())  # a name may be too long to ask for
    for shard in shards:
        if shard.parent != index.parent or shard.suffix not in READERS:
            raise InputError(f"{index}: {shown(shard.name)} is not a file of weights beside it")
        if shard not in beside:
            raise InputError(f"{index}: {shown(shard.name)} is missing beside it; get it again")
    return shards


def _download(hub_id: str) -> Path:
    small = ["*.json", "*.yaml", "*.yml", "*.model", "*.jinja"]
    # pickles only where there is nothing better
    for weights in (["*.safetensors"], ["*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.eqx"]):
        directory = download(hub_id, [*small, *weights])
        if any(file.suffix in READERS for file in directory.iterdir()):
            break
    return directory


def download(hub_id: str, patterns: list[str]) -> Path:
    """Fetch the files of a repository's newest snapshot; without network, take the cached one."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except (OSError, ValueError) as error:
        problem = f"not on disk, not from the hub ({one_line(error)})"
        advice = "check the name and the network, or give a local directory"
        raise InputError(f"{hub_id}: {problem}; {advice}") from None


def unwrap(tree: Tree, ema: bool, file: Path) -> tuple[dict[str, Stored], list[str]]:
    """Extract the state dict from a file's content, and notes on what was chosen."""
    notes: list[str] = []
    for _ in range(3):  # a pickle can hold itself
        holders = [key for key in map(str, tree) if _has_tensors(tree.get(key))]
        wrappers = FLAX_WRAPPERS if file.suffix == ".msgpack" else WRAPPERS
        known = [key for key in wrappers if key in holders][:1]
        own = [str(key) for key, value in tree.items() if isinstance(value, Stored)]
        if known or wrappers is FLAX_WRAPPERS or own:
            holders = known + [key for key in holders if AVERAGED.search(key)]
        if not known and any(key.endswith(("weight", "kernel")) for key in own):
            holders.append("")  # the copy in the tree itself
        if not (key := _choose(holders, ema, notes)):
            break
        notes += [f"took {key!r} and ignored the rest"] if len(tree) > 1 else []
        tree = tree[key]
    tensors = _flatten(tree, file)
    if holders and not tensors:
        names = ", ".join(map(shown, holders[:10]))
        raise InputError(f"{file}: holds several sets of weights ({names}); save one alone")
    other = [k for k in map(str, tree) if _has_tensors(tree.get(k)) and not AVERAGED.search(k)]
    if other and file.suffix != ".msgpack":
        notes.append(f"ignored {', '.join(map(shown, other[:10]))}, beside the weights")
    return tensors, notes


def _prefix(names: Iterable[str], ema: bool, notes: list[str]) -> str:
    """Find the wrapper's attributes that begin all names, or those of the copy that is taken.

    The names are those of all files: one file alone may hold a single module.
    """
    taken, names = "", [*names]
    while taken.count(".") < 10 and not any(map(OWN.fullmatch, names)):
        heads = dict.fromkeys(name.partition(".")[0] for name in names if "." in name)
        key = _choose(heads, ema, notes)
        # the name of a list of modules (`layers.0`) and of a layer (`norm.weight`) is no prefix
        module = re.compile(rf"{re.escape(str(key))}\.[^\d.][^.]*\.")
        if key is None or not (AVERAGED.search(key) or any(map(module.match, names))):
            break
        if loose := [name for name in names if "." not in name]:
            notes.append(f"ignored {', '.join(map(shown, loose[:10]))}, outside {key!r}")
        start = f"{key}."
        taken += start
        names = [name.removeprefix(start) for name in names if name.startswith(start)]
    return taken


def _has_tensors(value: object, levels: int = 3) -> bool:
    """Tell whether a mapping, or one in it, holds a tensor."""
    return isinstance(value, Mapping) and any(
        isinstance(inner, Stored) or (levels > 1 and _has_tensors(inner, levels - 1))
        for inner in value.values()
    )


def _choose(keys: Iterable[str], ema: bool, notes: list[str]) -> str | None:
    """Choose the only copy of the weights, or the averaged one beside it."""
    averaged = [key for key in keys if AVERAGED.search(key)]
    others = [key for key in keys if key not in averaged]
    if averaged and (ema or not others):
        notes.append(f"{TAKEN}, {averaged[0]!r}")
        return averaged[0]
    if len(others) != 1:
        return None
    if averaged:
        notes.append(f"left the averaged weights, {averaged[0]!r}; --ema takes them")
    return others[0]


def _flatten(tree: Tree, file: Path) -> dict[str, Stored]:
    flat: dict[str, Stored] = {}
    todo = [("", tree)]
    while todo:
        prefix, branch = todo.pop()
        for key, value in branch.items():
            name = f"{prefix}{key}"
            if isinstance(value, dict) and file.suffix == ".msgpack":  # PyTorch's is flat
                todo.append((f"{name}.", value))
            elif isinstance(value, Stored):
                name = ".".join(part for part in name.split(".") if part not in ADDED)
                if name in flat:
                    raise InputError(f"{file}: two tensors are {shown(name)} without {ADDED}")
                flat[name] = value
    return flat
