"""Settings: what a checkpoint does not say about itself, from flags or a YAML file beside it."""

from pathlib import Path

from mlx_gateloop.commands.parser import as_number
from mlx_gateloop.commands.parser import settings as parse_settings
from mlx_gateloop.configuration import read_yaml

FILE = "convert.yaml"


def read_settings(
    file: Path | None, weights: Path, overrides: list[str]
) -> tuple[dict[str, object], Path | None]:
    """Read the settings of a conversion and `KEY=VALUE` overrides; return them and their file.

    Without a file, one beside the weights with their name is taken, or `convert.yaml`.
    """
    if file is None:
        beside = [weights.with_suffix(".yaml"), weights.with_name(FILE)]
        file = next((path for path in beside if path.is_file()), None)
    tree = {} if file is None else read_yaml(file)
    settings = {key: as_number(value) for key, value in tree.items()}
    tokenizer = settings.get("tokenizer")
    if file and isinstance(tokenizer, str) and (file.parent / tokenizer).exists():
        settings["tokenizer"] = str(file.parent / tokenizer)
    return settings | parse_settings(overrides, "norm_eps=1e-6"), file
