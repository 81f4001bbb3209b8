"""Where a checkpoint's files lie: a local folder, or the cache of the hub."""

from __future__ import annotations

import logging
from pathlib import Path

from configs.errors import CheckpointError

log = logging.getLogger(__name__)

FILES = ["*.json", "*.safetensors", "tokenizer*"]
"""All that is read; pickled weights and code never are."""


def local_folder(base: str) -> Path:
    """``base`` itself where it is a folder, else what the hub has under that name. Raises CheckpointError."""
    folder = Path(base)
    if folder.is_dir():
        return folder
    if base.count("/") != 1 or base.startswith((".", "/")):
        raise CheckpointError(
            "no such folder", where=f"policy.base={base}", remedy="give a folder or owner/name on the hub"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(base, allow_patterns=FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"the hub did not give it ({type(error).__name__})", where=f"policy.base={base}",
            remedy="check the name, or download it elsewhere and give its folder",
        ) from error  # fmt: skip


def file_names(base: str) -> list[str]:
    """Names of all files of ``base``, those too that are never fetched. A hub that cannot be asked leaves those that are."""
    folder = local_folder(base)
    if not Path(base).is_dir():
        from huggingface_hub import list_repo_files
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        try:
            return sorted(list_repo_files(base))
        except (HfHubHTTPError, OfflineModeIsEnabled, OSError):
            log.warning("the hub could not be asked which files %s has beside those that are here", base)
    return sorted(path.name for path in folder.iterdir())
