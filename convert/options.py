"""The flags of the command."""

import argparse
from pathlib import Path


class Options(argparse.Namespace):
    """The flags of the command; see its --help."""

    source: str
    out: Path
    force: bool
    dry_run: bool
    kind: str | None
    to: str | None
    ema: bool
    settings: Path | None
    set: list[str]
    tokenizer: str | None
    dtype: str | None
    quantize: bool
    q_bits: int
    q_group_size: int
    push: str | None
    verify: bool
    tolerance: float
