"""The Hugging Face hub: snapshots come from it, model directories go to it."""

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


def check_login(repository: str) -> None:
    """Check that `push` will be allowed, before the work is done."""
    from huggingface_hub import HfApi

    try:
        HfApi().whoami()
    except Exception as error:  # the hub's, or any network error
        advice = "log in with `hf auth login`, or leave --push out"
        raise InputError(f"--push {repository}: {one_line(error)}; {advice}") from None


def push(directory: Path, repository: str) -> str:
    """Upload a model directory to `USER/NAME`, created if it is missing; return its address."""
    from huggingface_hub import HfApi

    try:
        address = HfApi().create_repo(repository, exist_ok=True)
        message = "Converted with mlx_gateloop"
        HfApi().upload_folder(repo_id=repository, folder_path=directory, commit_message=message)
    except Exception as error:  # the hub's, or any network error
        raise InputError(f"--push {repository}: {one_line(error)}; nothing was written") from None
    return str(address)
