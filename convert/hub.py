"""Snapshots from the Hugging Face hub."""

from pathlib import Path

from mlx_gateloop.errors import InputError, one_line


def download(hub_id: str, patterns: list[str]) -> Path:
    """Fetch the files of a repository's newest snapshot; without network, take the cached one."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except (HfHubHTTPError, OSError, ValueError) as error:
        advice = "check the name and the network, or give a local directory"
        raise InputError(
            f"{hub_id}: not on disk, not from the hub ({one_line(error)}); {advice}"
        ) from None
