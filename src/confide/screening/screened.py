"""A screened corpus on disk: a folder that screening wrote comes in; its manifest and records, checked, go out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import BadInput
from .manifest import checksum
from .output import footer_digest

if TYPE_CHECKING:
    from ..accounting import Setting


@dataclass(frozen=True)
class Screened:
    """A screened corpus on disk."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> Screened:
        """Open a folder that `screen` has written."""
        folder = Path(folder)
        try:
            found = json.loads((folder / "manifest.json").read_text("utf-8"))
            if found["checksum"] != checksum(found):
                raise ValueError
            return cls(folder, found)
        except OSError:
            raise BadInput(
                f"{folder} is no screened corpus: it has no manifest.json; make one with `confide screen`"
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise BadInput(f"{folder / 'manifest.json'} is damaged; screen the corpus again") from None

    def files(self, part: str) -> list[Path]:
        """The Parquet files of a part, all of them, as they were written.

        *Formal guarantees.* Names and types of columns are those that screening wrote: a column that was lost would be text without
        its findings.
        """
        paths = sorted((self.folder / part).glob("*.parquet"))
        if "footers" not in self.manifest:  # screened before there were any
            return paths
        try:
            key = bytes.fromhex((self.folder / "key").read_text("ascii").strip())
            found = {f"{part}/{path.name}": footer_digest(path, key) for path in paths}
        except (OSError, ValueError) as error:
            raise BadInput(f"{self.folder} cannot be read ({type(error).__name__}); screen the corpus again") from None
        stated = {name: digest for name, digest in self.manifest["footers"].items() if name.startswith(f"{part}/")}
        for name in sorted(stated.items() ^ found.items()):
            raise BadInput(f"{self.folder / name[0]} is damaged, lost or not of this corpus; screen the corpus again")
        return paths

    def batches(
        self, part: str, columns: Sequence[str] = ("id", "text", "group"), rows: int = 1 << 16
    ) -> Iterator[pa.RecordBatch]:
        """The records of a part in their order, at most so many `rows` at once; only the columns asked for are read."""
        for path in self.files(part):
            try:
                with pq.ParquetFile(path, page_checksum_verification=True) as file:
                    if lost := set(columns) - set(file.schema_arrow.names):
                        raise BadInput(f"{path} has no column {min(lost)}; screen the corpus again")
                    yield from file.iter_batches(rows, columns=list(columns))
            except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
                raise BadInput(f"{path} cannot be read ({type(error).__name__}); screen the corpus again") from None

    def has_turns(self) -> bool:
        """Whether any record is a chat."""
        parts = (batch.column("turns") for part in ("public", "private") for batch in self.batches(part, ["turns"]))
        return any(len(turns.flatten()) for turns in parts)

    def setting(self, **training: Any) -> Setting:
        """What a certificate must know about this corpus, joined with a run's choices (method, clipping norm, …)."""
        from ..accounting import Setting

        return Setting(**{**self.manifest["certificate"], **training})
