"""The target of a conversion, checked before any work."""

from pathlib import Path

from mlx_gateloop.configuration import read_json
from mlx_gateloop.errors import InputError
from mlx_gateloop.io.files import contents, require_writable
from mlx_gateloop.io.layers import LAYERS_TYPE
from mlx_gateloop.model.registered import MODELS

OWN_TYPES = (*MODELS, LAYERS_TYPE)
# What --force may replace: the files of a model directory, with those that mlx_lm adds.
WRITTEN = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.py", "README.md", ".gitattributes")


def check_target(target: Path, sources: list[Path], force: bool) -> None:
    """Reject a target that holds something or is a source; `force` replaces an older model."""
    if target.is_symlink() and not target.exists():
        raise InputError(f"{target}: a link to nothing; give another output")
    if target.name in ("", ".."):  # a folder in use cannot be replaced
        raise InputError(f"{target}: give the output a name of its own")
    for source in sources:
        if target.resolve() in (source.resolve(), *source.resolve().parents):
            raise InputError(f"{target}: holds the source, {source.name}; give another output")
    require_writable(target)
    if not target.exists() or (target.is_dir() and not contents(target)):
        return
    if not _is_ours(target):
        holds = "holds more than a model of ours, or none"
        raise InputError(f"{target}: exists and {holds}; give another output, or remove it")
    if not force:
        raise InputError(f"{target}: exists; give another output, or --force to replace it")


def _is_ours(target: Path) -> bool:
    """True of a directory with a model of ours and nothing else."""
    try:
        kind = read_json(target / "config.json").get("model_type")
    except InputError:
        return False
    return kind in OWN_TYPES and all(any(map(p.match, WRITTEN)) for p in contents(target))
