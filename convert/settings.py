"""What weights do not say: settings from flags, over those of a YAML file beside the checkpoint."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from mlx_gateloop.commands.parser import as_number
from mlx_gateloop.commands.parser import settings as parse_settings
from mlx_gateloop.errors import InputError

from .reading.containers import one_line
from .reading.find import Checkpoint

NAME = "convert.yaml"


def read_settings(
    file: Path | None, checkpoint: Checkpoint, overrides: Iterable[str]
) -> tuple[dict[str, Any], Path | None]:
    """The settings of a conversion.

    Args:
        file: The YAML file that the user named; None looks beside the checkpoint for
            `convert.yaml`, or one with the checkpoint's own name.
        checkpoint: The weights.
        overrides: `KEY=VALUE` each.

    Returns:
        The settings, and the file that was read.

    Raises:
        InputError: The file is unreadable, or an override is malformed.
    """
    file = file or _beside(checkpoint)
    settings = {} if file is None else _read(file)
    settings |= parse_settings(list(overrides), "norm_eps=1e-6")
    return settings, file


def _beside(checkpoint: Checkpoint) -> Path | None:
    names = [checkpoint.files[0].with_suffix(".yaml").name, NAME]
    found = [checkpoint.directory / name for name in names]
    return next((file for file in found if file.is_file()), None)


def _read(file: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}; give a YAML file of settings") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{file}: not readable YAML: {one_line(error)}") from None
    if tree is not None and not isinstance(tree, dict):
        raise InputError(f"{file}: expected `key: value` lines, got {type(tree).__name__}")
    return {key: as_number(value) for key, value in (tree or {}).items()}
