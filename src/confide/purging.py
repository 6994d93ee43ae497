"""Removing what is sensitive: the folder of a run or of a screened corpus in; what was removed, and what stays, out.

Of a run stay its model, its certificate with the ledger, its configuration and public telemetry, and every page that may
be shared: enough for `confide verify`. Of a screened corpus nothing stays. Files are unlinked, not overwritten.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import __version__
from .errors import BadInput, ConfideError
from .plain_yaml import CONFIG, run_config
from .rundir import LOCK, Lock, sync_folder, write_private

PURGED = "purged.json"  # of a run: that it was purged, and of what
PURGING = "purging.json"  # of a corpus: that it is no longer whole
OF_A_RUN = {
    "screened": "tokens of the records",
    "checkpoints": "states of the run, from which it could go on",
    "best": "the best model so far, of which model/ is a copy",
    "attacks.json": "what attacks found, counts of real secrets among it",
    "review.json": "the counts of a review",
    "report.html": "the report, which counts private things",
    "figures": "its figures",
}
STAYS = (
    CONFIG, "ledger.jsonl", "certificate.json", "certificate-shareable.json", "telemetry.jsonl", "tensorboard",
    "model", "report-shareable.html", "figures-shareable", PURGED, LOCK,
)  # fmt: skip
OF_A_CORPUS = {
    "public": "text of the public records",
    "private": "text of the private records, raw and screened",
    "work": "text on its way",
    "key": "the key of the digests",
    "canaries.json": "what was planted",
    "coins.json": "how the coins fell",
    **dict.fromkeys(
        ("review.json", "review.sqlite", "review.sqlite-wal", "review.sqlite-shm", "review.begun", "review.html"),
        "a review",
    ),
    "plan.json": "what a screening that did not end was begun with",
    "lock": "the lock of that screening",
    "SENSITIVE": "the warning",
    "manifest.json": "counts of private things",
    PURGING: "what an interrupted purge is known by",
}
DRAFTS = (".partial", ".new", ".replaced")  # of files and folders that a killed command left half made
NOISELESS = ("plain", "redacted", "anonymized")


@dataclass(frozen=True)
class Purge:
    """What a purge of a folder removes, `parts` with their meaning; `left`: what confide does not know, and leaves alone."""

    folder: Path
    kind: str  # run, or corpus
    parts: dict[str, str]
    links: dict[str, str]  # parts that are symbolic links: they go, what they point to stays
    kept: tuple[str, ...]
    left: tuple[str, ...]
    notes: tuple[str, ...]
    size: int  # bytes

    def to_plain(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "kind": self.kind,
            "removed": sorted(self.parts),
            "links": self.links,
            "kept": list(self.kept),
            "left": list(self.left),
            "notes": list(self.notes),
            "bytes": self.size,
        }


def plan_purge(folder: str | Path) -> Purge:
    """What `purge` would remove. Refuses a folder that is neither a run nor a screened corpus."""
    folder = Path(folder)
    if folder.is_symlink():
        raise BadInput(f"{folder} is a link, and links are never followed; name {folder.resolve()} itself")
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise BadInput(f"cannot read the folder {folder}: {error.strerror}; name a run or a screened corpus") from None
    kind = "run" if _is_run(folder) else "corpus" if _is_corpus(folder) else None
    if kind is None:
        inside = [name for name in names if _is_run(folder / name) or _is_corpus(folder / name)]
        instead = f"name {' or '.join(str(folder / name) for name in inside[:3])}" if inside else "name such a folder"
        raise BadInput(f"{folder} is neither a run nor a screened corpus, so that nothing is removed; {instead}")
    known, stays = (OF_A_RUN, STAYS) if kind == "run" else (OF_A_CORPUS, ())
    parts = {}
    for name in names:
        whole = next((name.removesuffix(end) for end in DRAFTS if name.endswith(end)), name)
        if name in known:
            parts[name] = known[name]
        elif whole != name and (whole in known or whole in stays):
            parts[name] = "left half made by a command that was killed"
    links = {name: os.readlink(folder / name) for name in parts if (folder / name).is_symlink()}
    return Purge(
        folder,
        kind,
        parts,
        links,
        kept=tuple(name for name in names if name in stays and name not in parts),
        left=tuple(name for name in names if name not in stays and name not in parts),
        notes=tuple(_notes(folder, links) if kind == "run" else _notes_of_a_corpus(links)),
        size=sum(_size(folder / name) for name in parts),
    )


def purge(folder: str | Path) -> Purge:
    """Remove the sensitive parts of a folder. Killed at any moment, it ends when it is called again.

    *Formal guarantees.* Only names that `plan_purge` lists are removed, inside the folder alone: links are unlinked, never
    followed. From the first removal on nothing takes the folder for whole. Raises while another process trains or screens there.
    """
    found = plan_purge(folder)
    here = found.folder
    try:
        with _alone(here, found.kind):
            if found.kind == "run":
                told = json.dumps({"confide": __version__, "removed": sorted({*found.parts, *_before(here)})})
                write_private(here / PURGED, told + "\n")
            else:
                # By these it would be taken for whole, or for one to resume
                for name in ("plan.json", "manifest.json"):
                    if name in found.parts:
                        os.replace(here / name, here / PURGING)
            for name in sorted({*found.parts, PURGING}, key=lambda name: (name == PURGING, name)):
                _remove(here / name)  # the last one is what it is known by until the end
            sync_folder(here)
        if found.kind == "corpus" and not found.left:
            here.rmdir()
    except OSError as error:
        what = error.filename or here
        raise ConfideError(f"cannot remove {what}: {error.strerror}; mend that, then purge again") from None
    return found


def _is_run(folder: Path) -> bool:
    if (folder / "ledger.jsonl").is_file() and (folder / CONFIG).is_file() and (folder / "checkpoints").is_dir():
        return True  # whatever its configuration has become
    try:
        return {"confide", "screened", "options"} <= run_config(folder).keys()
    except BadInput:
        return False


def _is_corpus(folder: Path) -> bool:
    if (folder / "plan.json").is_file() and (folder / "lock").is_file() and (folder / "SENSITIVE").is_file():
        return True  # a screening that did not end
    if (folder / PURGING).is_file():
        return True
    if all((folder / name).exists() for name in ("SENSITIVE", "key", "private", "manifest.json")):
        return True  # whatever its manifest has become
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and {"confide", "digest", "certificate", "private"} <= manifest.keys()


def _notes(folder: Path, links: dict[str, str]) -> Iterator[str]:
    try:
        config = run_config(folder)
    except BadInput:
        config = {"options": {}}
        yield f"{CONFIG} is damaged: where the corpus lies that the run was trained on is not known"
    corpus, options = Path(str(config.get("screened", os.devnull))), config["options"]
    if not (folder / "model").is_dir():
        yield "the run has not ended: without its checkpoints it cannot go on, and what its ledger holds stays spent"
    elif isinstance(options, dict) and options.get("method") in NOISELESS:
        yield "the model was trained without noise and may have memorised secrets; it stays"
    if (folder / "attacks.json").exists() and not (folder / "report-shareable.html").exists():
        yield f"make `confide report --shareable {folder}` first: without attacks.json it cannot tell of the attacks"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if json.loads((folder / "certificate.json").read_text(encoding="utf-8")).get("evidence") is not None:
            yield "certificate.json, which `confide verify` needs, states the counts of a review; certificate-shareable.json does not"
    if corpus.is_dir():
        yield f"the corpus it was trained on stays in {corpus}; `confide purge {corpus}` removes it"
    yield from _linked(links)


def _notes_of_a_corpus(links: dict[str, str]) -> Iterator[str]:
    yield "runs on it can be neither resumed nor attacked afterwards; their certificates verify as before"
    yield from _linked(links)


def _linked(links: dict[str, str]) -> Iterator[str]:
    for name, target in links.items():
        yield f"{name} is a link: what it points to, {target}, stays and is yours to remove"


@contextlib.contextmanager
def _alone(folder: Path, kind: str) -> Iterator[None]:
    """While no other process trains into a run, or screens into a corpus."""
    name = LOCK if kind == "run" else "lock"
    with (
        contextlib.closing(Lock(folder, name))
        if kind == "run" or (folder / name).is_file()
        else contextlib.nullcontext()
    ):
        yield


def _before(folder: Path) -> list[str]:
    """What an earlier purge has removed."""
    try:
        return [str(name) for name in json.loads((folder / PURGED).read_text(encoding="utf-8"))["removed"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)  # by descriptors: a folder that becomes a link meanwhile is not followed
    else:
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    files = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    return sum(one.lstat().st_size for one in files)
