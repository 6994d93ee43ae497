"""Folders and files that a command makes for its own output: for their owner only, for one process at a time, on disk and whole when it says so."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import resource
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from .errors import BadInput, ConfideError

LOCK = ".lock"


def new_folder(folder: Path) -> Path:
    """Create a folder that does not exist yet, for its owner only: nothing is ever overwritten."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise BadInput(f"{folder} exists and is never overwritten; name a new folder with -o") from None
    except OSError as error:
        raise BadInput(f"cannot create the folder {folder}: {error.strerror}; name another with -o") from None
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


def read_file(path: Path, largest: int = 1 << 30) -> bytes:
    """What a file holds. A pipe or a device may have no end, and neither is read: that is an `OSError` as if the system had said it."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        if about.st_size > largest:
            raise OSError(errno.EFBIG, f"it has more than {largest >> 20:,} MB", str(path))
        return file.read(largest)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Create a folder, and those above it, where they are missing; their names are on disk when this returns."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


class Lock:
    """A folder that this process alone works in, until `close` or its death. The file stays: to remove it would let two in."""

    def __init__(self, folder: Path, name: str = LOCK) -> None:
        """Raise `BadInput` if another process holds the folder."""
        try:
            self._file = open(os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "w")  # noqa: SIM115
        except OSError as error:
            raise ConfideError(
                f"cannot write in {folder}: {error.strerror}; make room or make it writable, and run the command again"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise BadInput(
                    f"{folder} lies on a disk that cannot lock files ({error.strerror}), so that two processes could change it at "
                    "once; name a folder on another disk"
                ) from None
            raise BadInput(
                f"another process is at work in {folder}; wait for it to end, or name another folder"
            ) from None

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def locked(folder: Path, of: str = "") -> Iterator[None]:
    """Work in a folder alone. One that is not there, or holds no file `of`, is left to the command to complain about."""
    with contextlib.closing(Lock(folder)) if (folder / of).exists() else contextlib.nullcontext():
        yield


def write_private(path: Path, *content: str | bytes) -> None:
    """Write a file for its owner only, whole or not at all; on disk when this returns."""
    waiting = path.with_name(path.name + ".new")
    try:
        waiting.unlink(missing_ok=True)
        with os.fdopen(os.open(waiting, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for one in content:
                file.write(one.encode() if isinstance(one, str) else one)
            file.flush()
            os.fsync(file.fileno())
        os.replace(waiting, path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            waiting.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Wait until a folder's names (or a file's content) are on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """The digest of a file, by which what a disk has changed is known."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


MODEL_FILES = {".safetensors", ".json", ".jinja", ".txt", ".model"}


def model_files(folder: Path) -> dict[str, str]:
    """The digests of what makes a model: its weights, configuration, vocabulary and templates, by file."""
    return {path.name: sha256_of(path) for path in sorted(folder.iterdir()) if path.suffix in MODEL_FILES}


def swap_in(draft: Path, folder: Path) -> None:
    """Give a finished folder its name. One of that name steps aside first, as `.replaced`: a process that is killed in between leaves one of them."""
    aside = folder.with_name(f"{folder.name}.replaced")
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(folder, aside)
    os.rename(draft, folder)
    sync_folder(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def sync_tree(folder: Path) -> None:
    """Wait until everything in a folder is on disk, names and contents."""
    for path in folder.rglob("*"):
        sync_folder(path)
    sync_folder(folder)
