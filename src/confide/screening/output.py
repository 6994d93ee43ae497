"""The folder that screening writes: `public/`, `private/` and `manifest.json`, complete or not there at all.

Work goes on in `FOLDER.partial`, which becomes FOLDER by one rename at the very end. A killed run leaves the partial
folder, from which `--resume` goes on; nothing ever looks whole that is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import BadInput
from ..rundir import Lock, make_folder, sync_folder, write_private
from .batches import SCHEMA

FILE_ROWS = 1 << 18
SENSITIVE = (
    "SENSITIVE. This folder holds raw text with secrets in it, and the key of its digests. Do not copy, publish or back it up "
    "with less care than the corpus itself.\n"
)
PARTS = {"public": ("id", "text", "group", "turns"), "private": ("id", "text", "group", "turns", "raw", "spans")}


def write_table(path: Path, table: pa.Table, key: bytes) -> None:
    """Keep a chunk's result in the work folder, whole or not at all, with a keyed digest at its end."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content = sink.getvalue()
    write_private(path, content, blake2b(content, key=key).digest())


def read_table(path: Path, key: bytes | None) -> pa.Table | None:
    """A chunk's result, or None if there is none or it is damaged. Without a key its digest is taken as checked."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    view = memoryview(content)[:-64]
    if key is not None and blake2b(view, key=key).digest() != content[-64:]:
        return None
    return pa.ipc.open_stream(pa.py_buffer(view)).read_all()


class Parts:
    """The Parquet files of one part, a new one whenever the last is full."""

    def __init__(self, folder: Path, part: str, labels: bool = False) -> None:
        shutil.rmtree(folder / part, ignore_errors=True)
        (folder / part).mkdir(mode=0o700)
        self._folder, self._columns = folder / part, PARTS[part] + (("label",) if labels else ())
        self._schema = pa.schema([SCHEMA.field(name) for name in self._columns])
        self._writer: pq.ParquetWriter | None = None
        self._file: Any = None
        self._rows = self._files = self.records = 0

    def write(self, table: pa.Table) -> None:
        if not len(table):
            return
        if self._writer is None or self._rows >= FILE_ROWS:
            self.close()
            path = self._folder / f"{self._files:05d}.parquet"
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
            # No statistics: a column's least and greatest text would stand in the file's footer.
            self._writer = pq.ParquetWriter(
                self._file, self._schema, compression="zstd", compression_level=1, write_statistics=False,
                write_page_checksum=True,
            )  # fmt: skip
            self._files += 1
            self._rows = 0
        self._writer.write_table(table.select(list(self._columns)).replace_schema_metadata())
        self._rows += len(table)
        self.records += len(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._writer = None

    def finish(self) -> None:
        """Close; an empty part still has a file with its columns."""
        if not self._files:
            path = self._folder / "00000.parquet"
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                pq.write_table(self._schema.empty_table(), file)
                file.flush()
                os.fsync(file.fileno())
        self.close()
        sync_folder(self._folder)  # before a manifest says that all is there

    def abandon(self) -> None:
        """Write no more: after a failure of the disk an open writer would try once again when it is forgotten, and complain."""
        if self._writer is not None:
            self._writer.is_open = False
            with contextlib.suppress(OSError):
                self._file.close()
            self._writer = None


def footer_digest(path: Path, key: bytes) -> str:
    """A keyed digest of what a Parquet file says about itself: its pages have checksums, its names and types have none. Empty if it has no footer."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        end = file.read()
        length = int.from_bytes(end[:4], "little")
        if end[4:] != b"PAR1" or length > size - 8:
            return ""
        file.seek(size - 8 - length)
        return blake2b(file.read(length), key=key, digest_size=16).hexdigest()


@contextlib.contextmanager
def partial_folder(out: Path, plan: dict[str, Any], resume: bool) -> Iterator[Path]:
    """The folder to work in, locked. It stays after a kill or an interrupt, and goes after an error of the input."""
    if not out.name:
        raise BadInput("name a new folder with -o")
    folder = out.with_name(out.name + ".partial")
    if out.exists():
        raise BadInput(f"{out} exists and is never overwritten; name a new folder with -o")
    if folder.exists() and not resume:
        Lock(folder, "lock").close()  # raises while another process is at work there: nobody may remove it then
        raise BadInput(f"{folder} holds a screening that did not end; complete it with --resume, or remove that folder")
    if resume and not folder.exists():
        raise BadInput(f"there is nothing to resume: {folder} does not exist; start without --resume")
    _make(folder)
    with contextlib.closing(Lock(folder, "lock")):
        _same_plan(folder, plan)
        try:
            yield folder
        except BadInput:
            if not resume:
                shutil.rmtree(folder, ignore_errors=True)
            raise


def _make(folder: Path) -> None:
    try:
        for path in (folder, folder / "work"):
            make_folder(path, mode=0o700)  # hours of work must not hang on a name that is not on disk
    except OSError as error:
        raise BadInput(f"cannot create the folder {folder}: {error.strerror}; name another with -o") from None


def _same_plan(folder: Path, plan: dict[str, Any]) -> None:
    """What is resumed must have been begun with the same corpus and the same options."""
    path = folder / "plan.json"
    if path.exists():
        try:
            before: dict[str, Any] = dict(json.loads(path.read_text()))
        except (ValueError, TypeError):
            raise BadInput(f"{path} is damaged; remove {folder} and screen again") from None
        differing = sorted(name for name in before.keys() | plan.keys() if before.get(name) != plan.get(name))
        if differing:
            raise BadInput(
                f"{folder} was begun with another {', '.join(differing)}; resume with the same, or remove that folder"
            )
    else:
        write_private(path, json.dumps(plan))


def finish(folder: Path, out: Path) -> None:
    """Take away what was only for the work, and give the folder its name. From here on it is whole."""
    shutil.rmtree(folder / "work", ignore_errors=True)
    for path in (folder / "public", folder / "private", folder):
        sync_folder(path)
    os.rename(folder, out)
    sync_folder(out.parent)
    with contextlib.suppress(OSError):  # it is whole without that
        (out / "plan.json").unlink()
        (out / "lock").unlink()
