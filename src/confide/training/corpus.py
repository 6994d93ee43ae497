"""A screened folder comes in; its records go out as tokens in memory-mapped files, read by index.

So the private part need not fit into memory, and no step of training touches text again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import ArrayLike, NDArray

from ..dp.losses import IGNORED
from ..errors import BadInput, ConfideError
from ..policies import Finding, merged
from ..records import Turn
from ..rundir import sha256_of, sync_folder, write_private
from ..screening.output import SENSITIVE
from ..screening.screened import Screened
from ..screening.treatment import redact
from .encoding import NO_LABEL, VIEWS, Encoder, Example, Tokens, View

FORMAT = 1  # of the files; tokens of another format are made again
ROWS = 4096  # records that are encoded at once
_FILES: dict[str, type[np.generic]] = {"ids": np.int32, "flags": np.uint8, "offsets": np.int64, "labels": np.int32}
_TARGET, _PRIVATE = 1, 2  # bits of the flags


@dataclass(frozen=True)
class Source:
    """What a method trains on: parts of a screened corpus, and what it sees of their records.

    "screened": the text with its masks, all that CRT ever reads. "raw": as it was read. "anonymized": raw, with a
    placeholder for each finding. "segments": raw, cut at the findings, each segment tokenised by itself (S-DP).
    """

    parts: tuple[str, ...] = ("public", "private")
    view: View = "screened"

    def __post_init__(self) -> None:
        if not self.parts or len(set(self.parts)) < len(self.parts) or not {"public", "private"}.issuperset(self.parts):
            raise BadInput("a source has the parts public, private or both")
        if self.view not in VIEWS:
            raise BadInput(f"a view is {', '.join(VIEWS)}; not {self.view!r}")

    def columns(self, part: str, encoder: Encoder) -> tuple[str, ...]:
        """The columns that are read of a part.

        *Formal guarantees.* Of the view "screened" neither `raw` nor `spans` is ever among them: what was redacted
        cannot reach a model that trains on it.
        """
        label = ("label",) if encoder.task == "classify" else ()
        if part == "public" or self.view == "screened":
            return ("text", *(("turns",) if encoder.reads_turns else ()), *label)
        if self.view == "raw" and not encoder.reads_turns:
            return ("raw", *label)
        aligned = ("text", "turns") if encoder.reads_turns and self.view != "segments" else ()
        return ("raw", "spans", *aligned, *label)


# -- reading ----------------------------------------------------------------------------------------------------------


def examples(screened: Screened, source: Source, encoder: Encoder, rows: int = ROWS) -> Iterator[list[Example]]:
    """The records of a source in their order, some at a time."""
    if encoder.assistant_only and source.view == "segments":
        raise BadInput("S-DP tells tokens apart by the policy, not by roles: leave --assistant-only out")
    for part in source.parts:
        columns = source.columns(part, encoder)
        _has(screened, part, columns)
        first = 0
        for batch in screened.batches(part, columns, rows):
            yield [
                _example(row, source.view, f"row {first + i} of the {part} part")
                for i, row in enumerate(batch.to_pylist())
            ]
            first += batch.num_rows


def _has(screened: Screened, part: str, columns: Sequence[str]) -> None:
    paths = screened.files(part)
    if not paths:
        raise BadInput(f"{screened.folder / part} holds no records; screen the corpus again")
    try:
        names = pq.read_schema(paths[0]).names
    except (OSError, pa.ArrowException):
        raise BadInput(f"{paths[0]} is damaged; screen the corpus again") from None
    for column in columns:
        if column not in names:
            hint = " with --label-field" if column == "label" else ""
            raise BadInput(f"{screened.folder / part} has no column {column}; screen the corpus again{hint}")


def _example(row: dict[str, Any], view: View, where: str) -> Example:
    turns = tuple(Turn(**turn) for turn in row.get("turns") or ())
    if "raw" not in row:
        return Example(row["text"], view, turns, (), row.get("label"), where)
    findings = [Finding(**finding) for finding in row.get("spans") or ()]
    if turns:
        turns = raw_turns(row["raw"], findings, row["text"], turns)
    return Example(row["raw"], view, turns, findings, row.get("label"), where)


def raw_turns(raw: str, findings: Sequence[Finding], text: str, turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Where the turns of a screened text lie in its raw text; none if dedup has taken some of them out.

    Between the turns both texts are the same, and redacting a turn's raw words gives its screened ones.
    """
    spans = merged(list(findings))
    if raw[: turns[0].start] != text[: turns[0].start]:
        return ()
    ways: dict[int, tuple[Turn, ...]] = {turns[0].start: ()}  # where the next turn may begin, and the turns before it
    for turn, after in zip(turns, [*turns[1:], None], strict=True):
        between = text[turn.end : after.start if after else len(text)]
        ahead: dict[int, tuple[Turn, ...]] = {}
        for low, before in ways.items():  # more than one only if a finding covers the border of two turns
            for high in _places(raw, between, low, last=after is None):
                near = [(start - low, end - low) for start, end in spans if start < high and end > low]
                if redact(raw[low:high], near, [(0, high - low)])[0] == text[turn.start : turn.end]:
                    ahead.setdefault(high + len(between), (*before, Turn(turn.role, low, high)))
        ways = ahead
    return next(iter(ways.values()), ())


def _places(raw: str, between: str, low: int, last: bool) -> Iterator[int]:
    if last:
        if raw.endswith(between) and len(raw) - len(between) >= low:
            yield len(raw) - len(between)
        return
    at = raw.find(between, low)
    while at >= 0:
        yield at
        at = raw.find(between, at + 1)


# -- writing ----------------------------------------------------------------------------------------------------------


def fingerprint(screened: Screened, source: Source, encoder: Encoder) -> str:
    """A public name for the tokens of a source: equal if and only if nothing that decides them has changed, but for what is drawn for masks.

    Of the corpus it holds the manifest's digest, which is keyed: it confirms no guess about a private record.
    """
    tokenizer = json.loads(encoder.tokenizer.backend_tokenizer.to_str())
    for name in ("truncation", "padding"):  # what the last caller happened to set, and we do not use
        tokenizer.pop(name, None)
    special = [getattr(encoder.tokenizer, f"{name}_token_id") for name in ("bos", "eos", "mask")]
    choices = {one.name: getattr(encoder, one.name) for one in fields(encoder) if one.name != "tokenizer"}
    choices["placeholders"] = dict(encoder.placeholders)
    corpus = [screened.manifest.get(name) for name in ("digest", "public", "private")]
    template = getattr(encoder.tokenizer, "chat_template", None)
    content = [FORMAT, corpus, source.parts, source.view, choices, special, template, tokenizer]
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def tokenise(
    screened: Screened,
    source: Source,
    encoder: Encoder,
    folder: str | Path,
    tick: Callable[[int], object] = lambda records: None,
) -> TokenFile:
    """The tokens of a source in `folder`; made once, and found there again by a resumed run.

    Name the folder by the fingerprint. `tick` is called with the number of records that were encoded. Memory is bounded
    by a few thousand records.
    """
    name = fingerprint(screened, source, encoder)
    if Path(folder).exists():
        found = TokenFile.open(folder, checked=True)
        if found.fingerprint != name:
            raise BadInput(f"{folder} holds tokens of another corpus or made in another way; name another folder")
        tick(len(found))
        return found

    def records() -> Iterator[Tokens]:
        for some in examples(screened, source, encoder):
            yield from encoder.encode(some)
            tick(len(some))

    return TokenFile.write(folder, records(), name)


class TokenFile:
    """Tokens of records on disk, mapped into memory: a read-only sequence of `Tokens`."""

    def __init__(self, folder: Path, arrays: dict[str, NDArray[Any]], header: dict[str, Any]) -> None:
        self.folder, self.fingerprint = folder, str(header["fingerprint"])
        self.longest, self.classify = int(header["longest"]), bool(header["classify"])
        self._ids, self._flags, self._offsets, self._labels = (arrays[name] for name in _FILES)

    @classmethod
    def write(cls, folder: str | Path, records: Iterable[Tokens], fingerprint: str = "") -> TokenFile:
        """Write records one after the other, for the owner only; the folder is whole or not there at all."""
        folder = Path(folder)
        partial = folder.with_name(folder.name + ".partial")
        with _disk(folder):
            shutil.rmtree(partial, ignore_errors=True)
            partial.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial.mkdir(mode=0o700)
            write_private(partial / "SENSITIVE", SENSITIVE)
            count = tokens = longest = 0
            kinds: set[bool] = set()
            with contextlib.ExitStack() as stack:
                files = {name: stack.enter_context(_new(partial / f"{name}.bin")) for name in _FILES}
                files["offsets"].write(np.int64(0).tobytes())
                for ids, target, private, label in records:
                    tokens, longest, count = tokens + len(ids), max(longest, len(ids)), count + 1
                    kinds.add(label != NO_LABEL)
                    flags = np.asarray(target, np.uint8) * _TARGET | np.asarray(private, np.uint8) * _PRIVATE
                    if not len(ids) or len(ids) != len(target) or len(ids) != len(private) or len(kinds) > 1:
                        raise ConfideError(f"record {count - 1} is empty, or not of one piece with the others")
                    files["ids"].write(np.ascontiguousarray(ids, np.int32).data)
                    files["flags"].write(flags.data)
                    files["offsets"].write(np.int64(tokens).tobytes())
                    files["labels"].write(np.int32(label).tobytes())
                for file in files.values():
                    file.flush()
                    os.fsync(file.fileno())
            header = {"format": FORMAT, "fingerprint": fingerprint, "records": count, "tokens": tokens}
            header |= {"longest": longest, "classify": True in kinds, "digests": _digests(partial)}
            write_private(partial / "header.json", json.dumps(header) + "\n")
            os.rename(partial, folder)
            for path in (folder.parent, folder.parent.parent):
                sync_folder(path)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path, checked: bool = False) -> TokenFile:
        """Map what `write` has written; a file that is not whole is refused. `checked`: every byte of it is looked at."""
        folder = Path(folder)
        try:
            header = json.loads((folder / "header.json").read_text())
            count, tokens, longest = (int(header[name]) for name in ("records", "tokens", "longest"))
            shapes = {"ids": tokens, "flags": tokens, "offsets": count + 1, "labels": count}
            arrays = {name: _mapped(folder / f"{name}.bin", kind, shapes[name]) for name, kind in _FILES.items()}
            offsets = arrays["offsets"]
            lengths = np.diff(offsets)
            whole = header["format"] == FORMAT and {"classify", "fingerprint"} <= header.keys() and offsets[0] == 0
            whole = whole and offsets[-1] == tokens and bool(np.all(lengths > 0))
            whole = whole and longest == (lengths.max() if count else 0)
            whole = whole and (not checked or header.get("digests") in (None, _digests(folder)))
        except FileNotFoundError:
            raise BadInput(f"{folder} holds no tokens; remove it, and they are made again") from None
        except (OSError, ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            raise BadInput(f"the tokens in {folder} are damaged or truncated; remove it, and they are made again")
        return cls(folder, arrays, header)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Tokens:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no record {index} among {len(self)}")
        start, end = self._offsets[index % len(self)], self._offsets[index % len(self) + 1]
        flags = self._flags[start:end]
        return Tokens(self._ids[start:end], flags & _TARGET > 0, flags & _PRIVATE > 0, int(self._labels[index]))

    def __iter__(self) -> Iterator[Tokens]:
        return (self[i] for i in range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each record."""
        return np.diff(self._offsets)

    def batch(self, indices: ArrayLike, pad_id: int) -> dict[str, torch.Tensor]:
        """Records as one batch, padded at the right to the longest of them, rounded up to a multiple of 8.

        `labels` are the tokens themselves (models shift them), -100 where there is no target; of a classifier, one
        class a record. No indices give a batch of no records.
        """
        rows = np.asarray(indices, np.int64).reshape(-1)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"there are {len(self)} records; indices lie between 0 and {len(self) - 1}")
        starts = self._offsets[rows]
        lengths = self._offsets[rows + 1] - starts
        longest = int(lengths.max()) if len(rows) else 1
        width = max(1, min(-(-longest // 8) * 8, max(longest, self.longest)))
        places = np.arange(width)
        inside = places < lengths[:, None]
        where = np.where(inside, starts[:, None] + places, 0)
        ids = np.where(inside, self._ids[where], pad_id) if len(rows) else np.zeros((0, width))
        flags = self._flags[where] * inside if len(rows) else np.zeros((0, width), np.uint8)
        input_ids = torch.from_numpy(ids.astype(np.int64))
        found = {"input_ids": input_ids, "attention_mask": torch.from_numpy(inside.astype(np.int64))}
        if self.classify:
            found["labels"] = torch.from_numpy(self._labels[rows].astype(np.int64))
        else:
            found["labels"] = input_ids.masked_fill(torch.from_numpy(flags & _TARGET == 0), IGNORED)
        return found


def _digests(folder: Path) -> dict[str, str]:
    return {name: sha256_of(folder / f"{name}.bin") for name in _FILES}


def _new(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=1 << 20)


def _mapped(path: Path, kind: type[np.generic], count: int) -> NDArray[Any]:
    if count < 0 or path.stat().st_size != count * np.dtype(kind).itemsize:
        raise ValueError
    return np.memmap(path, kind, "r", shape=(count,)).view(np.ndarray) if count else np.zeros(0, kind)


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfideError(
            f"cannot write the tokens {folder}: {error.strerror or type(error).__name__}; make room, then go on with --resume"
        ) from None
