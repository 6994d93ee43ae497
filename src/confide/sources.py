"""Which files a corpus is: files, folders, globs and URIs come in; each file once, with its name, format and file system, goes out."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import fsspec
import pyarrow as pa

from .errors import BadInput

FORMATS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet",
    ".arrow": "arrow", ".txt": "text", ".text": "text", ".md": "text",
}  # fmt: skip
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class File:
    """One file of the corpus."""

    name: str  # below the folder that all files share: unique, for messages
    stem: str  # for ids: the name, without suffixes if no two files then have one name
    format: str
    compression: str | None
    path: str
    filesystem: Any = field(repr=False, compare=False)


def sources(corpus: Sequence[str]) -> list[File]:
    """The files of a corpus in a stable order: sorted by name, each once.

    An item is a file, a folder with all below it, a folder that Hugging Face datasets saved with `save_to_disk`, a
    glob, or an fsspec URI of one of these.
    """
    found: dict[tuple[str, ...], tuple[Any, str]] = {}
    for item in corpus:
        filesystem, paths = _resolve(item)
        protocol = filesystem.protocol if isinstance(filesystem.protocol, str) else filesystem.protocol[0]
        for path in paths:
            found[protocol, *path.strip("/").split("/")] = filesystem, path
    if not found:
        raise BadInput("the corpus names no file; give files, folders, patterns or addresses that hold one")
    shared = _shared(list(found))
    names = {key: "/".join(key[shared:]) for key in found}
    short = len({_stem(name) for name in names.values()}) == len(names)
    files = []
    for key, (filesystem, path) in found.items():
        name = names[key]
        if _UNPRINTABLE.search(name):
            raise BadInput(f"{name!a}: rename the file; its name is not printable UTF-8")
        files.append(File(name, _stem(name) if short else name, *_format(name), path, filesystem))
    return sorted(files, key=lambda file: file.name)


def _resolve(item: str) -> tuple[Any, list[str]]:
    """The file system of a corpus item and the files that it stands for."""
    shown = re.sub(r"//[^/@]*@", "//", item)  # without a password
    if not item:
        raise BadInput("a corpus has no name; name a file, a folder or a pattern (. is this folder)")
    try:
        filesystem, path = fsspec.core.url_to_fs(item)
        if filesystem.isfile(path):
            return filesystem, [path]
        if filesystem.isdir(path):
            paths = _below(filesystem, path, shown)
        else:
            paths = [match for match in filesystem.glob(path) if filesystem.isfile(match)]
    except BadInput:
        raise
    except ImportError as error:
        raise BadInput(f"{shown}: its protocol needs a package that is not installed ({error})") from None
    except Exception as error:  # file systems raise what they like
        raise BadInput(f"{shown} cannot be read: {cause(error)}") from None
    if not paths and os.path.exists(path) and not os.path.isdir(path) and not os.path.isfile(path):
        raise BadInput(
            f"{shown} is neither a file nor a folder: what a pipe or a device holds has to be written to a file first"
        )
    if not paths and os.path.exists(path) and not os.access(path, os.R_OK | os.X_OK):
        raise BadInput(f"{shown} cannot be read: permission denied; make it readable, or name another corpus")
    if not paths:
        raise BadInput(f"{shown} names no file; is the path or the pattern right?")
    return filesystem, paths


def _below(filesystem: Any, folder: str, shown: str) -> list[str]:
    """The files below a folder but hidden and screened ones; of a saved data set only its data files."""
    found = filesystem.find(folder, detail=True)
    for path, about in found.items():
        if about.get("type") == "other":  # a pipe would be waited for without end
            raise BadInput(
                f"{shown}: {os.path.basename(path)} is neither a file nor a folder; take it away, or name the files one by one"
            )
    paths = sorted(found)
    hidden = re.compile(r"/[._][^/]*")
    paths = [path for path in paths if not hidden.search(path[len(folder.rstrip("/")) :])]
    for marker in [path for path in paths if path.endswith("/SENSITIVE")]:
        paths = [path for path in paths if not path.startswith(marker.removesuffix("SENSITIVE"))]
    for marker in [path for path in paths if path.endswith("/dataset_dict.json")]:
        home = shown.rstrip("/") + marker[len(folder.rstrip("/")) :].removesuffix("dataset_dict.json")
        splits = _json(filesystem, marker).get("splits")
        named = " or ".join(f"{home}{split}" for split in splits) if isinstance(splits, list) else f"{home}train"
        raise BadInput(f"{home} holds a data set with splits; name the one to read: {named}")
    for marker in [path for path in paths if path.endswith("/state.json")]:
        home = marker.removesuffix("state.json")
        if home + "dataset_info.json" in paths:
            listed = _data_files(_json(filesystem, marker), shown)
            paths = [path for path in paths if not path.startswith(home)] + [home + name for name in listed]
    return paths


def _data_files(state: dict[str, Any], shown: str) -> list[str]:
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise BadInput(f"{shown} stores a selection of rows; save the data set again after flatten_indices()")
    listed = [entry.get("filename") for entry in state.get("_data_files") or [] if isinstance(entry, dict)]
    if not listed or not all(isinstance(name, str) and name.endswith(".arrow") for name in listed):
        raise BadInput(f"{shown}: state.json lists no Arrow files; save the data set again with save_to_disk")
    if any("/" in str(name) or "\\" in str(name) for name in listed):
        raise BadInput(
            f"{shown}: state.json names a file outside of the data set's folder; save it again with save_to_disk"
        )
    return [str(name) for name in listed]


def _json(filesystem: Any, path: str) -> dict[str, Any]:
    try:
        with filesystem.open(path, "rb") as stream:
            found = json.load(stream)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadInput(f"{path} is not the JSON object that save_to_disk writes")
    return found


def _shared(keys: list[tuple[str, ...]]) -> int:
    """How many folders the files have in common."""
    first, last = min(keys), max(keys)
    return next((i for i, (a, b) in enumerate(zip(first[:-1], last[:-1], strict=False)) if a != b),
                min(len(first), len(last)) - 1)  # fmt: skip


def _suffixes(name: str) -> tuple[str, str]:
    """The suffix that says the format and the one that says the compression, as written."""
    compression = next((suffix for suffix in COMPRESSIONS if name.lower().endswith(suffix)), "")
    base = name.rsplit("/", 1)[-1]
    rest = base[: len(base) - len(compression)]
    return rest[rest.rfind(".") :] if rest.rfind(".") > 0 else "", base[len(rest) :]


def _stem(name: str) -> str:
    return name[: len(name) - sum(map(len, _suffixes(name)))]


def _format(name: str) -> tuple[str, str | None]:
    suffix, packed = (part.lower() for part in _suffixes(name))
    found = FORMATS.get(suffix)
    if found is None or (packed and found in ("parquet", "arrow")):
        known = ", ".join(FORMATS)
        raise BadInput(f"{name}: unknown format; known are {known}, the text ones also with .gz or .zst")
    return found, COMPRESSIONS.get(packed)


def cause(error: Exception) -> str:
    """Why reading failed. The error's own words may quote the file, so only its kind is told."""
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return error.strerror
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, EOFError | zlib.error | OSError | pa.ArrowException):
        return "it is truncated or damaged, or not what its name says; mend it, or leave it out"
    return f"the file system reports {type(error).__name__}"
