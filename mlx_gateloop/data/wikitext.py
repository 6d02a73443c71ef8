"""WikiText-103, raw (Merity et al., arXiv 1609.07843), from the hub's parquet or `wiki.*.raw`.

Each part is one document without blank lines, as the systems that the paper compares with read it
(Hyena's repository safari, configs/dataset/wt103.yaml); blank lines are easy to predict.
"""

import re
from pathlib import Path

from mlx_gateloop.data.documents import Document, read_text
from mlx_gateloop.errors import InputError

REPOSITORY, CONFIGURATION = "Salesforce/wikitext", "wikitext-103-raw-v1"

# A part's name in the original release, and in the parquet files.
PARTS = {"train": "train", "valid": "validation", "test": "test"}

_BLANK_LINE = re.compile(r"^[^\S\n]*\n", re.MULTILINE)


def download() -> Path:
    """Return the folder of the hub's parquet files, downloaded if it is not cached."""
    from huggingface_hub import snapshot_download

    try:
        repository = snapshot_download(
            REPOSITORY, repo_type="dataset", allow_patterns=f"{CONFIGURATION}/*.parquet"
        )
    except OSError as error:
        raise InputError(
            f"wikitext-103: cannot be downloaded ({type(error).__name__}); with a network, run `hf"
            f" download {REPOSITORY} --repo-type dataset --include '{CONFIGURATION}/*' --local-dir"
            f" wikitext` and give the folder wikitext/{CONFIGURATION} as the data"
        ) from error
    return Path(repository) / CONFIGURATION


def is_wikitext(folder: Path) -> bool:
    """Check that a folder has the training part, in one of the two forms."""
    return bool(_find(folder, "train"))


def read_parts(folder: Path) -> tuple[list[Document], ...]:
    """Read the training, validation and test part from `wiki.*.raw`, `.tokens` or parquet files."""
    return tuple(_documents(folder, part) for part in PARTS)


def _find(folder: Path, part: str) -> list[Path]:
    for pattern in (f"wiki.{part}.raw", f"wiki.{part}.tokens", f"{PARTS[part]}-*.parquet"):
        if files := sorted(folder.glob(pattern)):
            return files
    return []


def _documents(folder: Path, part: str) -> list[Document]:
    if not (files := _find(folder, part)):
        raise InputError(f"{folder}: no wiki.{part}.raw and no {PARTS[part]}-*.parquet; add it")
    parts = (_rows(file) if file.suffix == ".parquet" else read_text(file) for file in files)
    text = "".join(_BLANK_LINE.sub("", part) for part in parts)
    return [text] if text else []


def _rows(path: Path) -> str:
    import pyarrow
    from pyarrow import parquet

    try:
        rows = parquet.read_table(path, columns=["text"])["text"].to_pylist()
        return "".join(row for row in rows if row)
    except (pyarrow.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: not a parquet file of WikiText ({reason})") from error
