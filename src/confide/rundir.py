"""Folders that a command makes for its own output."""

from __future__ import annotations

from pathlib import Path

from .errors import BadInput


def new_folder(folder: Path) -> Path:
    """Create a folder that does not exist yet: nothing is ever overwritten."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise BadInput(f"{folder} exists and is never overwritten; name a new folder with -o") from None
    except OSError as error:
        raise BadInput(f"cannot create the folder {folder}: {error.strerror}") from None
    return folder
