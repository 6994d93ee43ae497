"""Folders that a command makes for its own output: for their owner only, and for one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .errors import BadInput


def new_folder(folder: Path) -> Path:
    """Create a folder that does not exist yet, for its owner only: nothing is ever overwritten."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise BadInput(f"{folder} exists and is never overwritten; name a new folder with -o") from None
    except OSError as error:
        raise BadInput(f"cannot create the folder {folder}: {error.strerror}") from None
    return folder


@contextlib.contextmanager
def owner_only() -> Iterator[None]:
    """Whatever is made meanwhile, by this process, its children or any library: 0600 and 0700 at most, and no dump of memory."""
    before, dump = os.umask(0o077), resource.getrlimit(resource.RLIMIT_CORE)
    os.umask(before | 0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, dump[1]))
    try:
        yield
    finally:
        os.umask(before)
        resource.setrlimit(resource.RLIMIT_CORE, dump)


def hold(path: Path) -> IO[str]:
    """Lock a file until what is returned is closed, or the process ends; raise if another process has it."""
    file = path.open(encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise BadInput(f"another process is at work in {path.parent}; wait until it has ended") from None
    return file
