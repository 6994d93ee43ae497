"""Which data sets there are: a folder with the published files comes in; JSONL files for `confide screen` go out.

Every record keeps what is known about its secrets: their places and types by ground truth, or None where nobody knows.
Errors name the file, the line and the field, never a word of the data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from ..errors import BadInput
from ..rundir import write_private
from . import customersim, published
from .published import Text

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Corpus:
    """A data set: `read` makes one split's records of the files that it finds; `options` are passed on to it."""

    name: str
    what: str
    where: str
    read: Callable[..., Iterator[Text]] = field(repr=False)
    folders: tuple[
        str, ...
    ] = ()  # where its files may be below the data folder, besides that itself and one of its name
    options: Mapping[str, Any] = field(default_factory=dict)
    splits: tuple[str, ...] = SPLITS


# -- writing ----------------------------------------------------------------------------------------------------------


def write(name: str, data: Path | None, out: Path) -> dict[str, Any]:
    """Write a data set as `train.jsonl`, `valid.jsonl` and `test.jsonl` below `out`, and what was written as `corpus.json`.

    A folder that holds `corpus.json` is whole, and is only read back.
    """
    if name not in CORPORA:
        raise BadInput(f"no data set is called {name!r}; there are {', '.join(CORPORA)}")
    corpus = CORPORA[name]
    if (out / "corpus.json").exists():
        return _written(corpus, out / "corpus.json")
    paths = {split: out / f"{split}.jsonl" for split in corpus.splits}
    for path in paths.values():
        if path.exists():
            raise BadInput(f"{path} exists, but no corpus.json beside it; remove it or name a new folder")
    waiting = {split: path.with_name(path.name + ".partial") for split, path in paths.items()}
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = {split: _write_split(corpus, data, split, path) for split, path in waiting.items()}
        for split, path in paths.items():
            os.replace(waiting[split], path)
        found = {"corpus": name, "splits": made}
        write_private(out / "corpus.json", json.dumps(found, indent=1) + "\n")
    except BadInput as error:
        raise BadInput(f"{name}: {error}. {corpus.where}") from None
    except OSError as error:
        raise BadInput(f"cannot write {out}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            for path in waiting.values():
                path.unlink(missing_ok=True)
            out.rmdir()  # only if nothing came of it
    return found


def _written(corpus: Corpus, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
        if found["corpus"] == corpus.name and set(found["splits"]) == set(corpus.splits):
            return cast("dict[str, Any]", found)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise BadInput(f"{path} is not that of {corpus.name}; name a new folder")


def _write_split(corpus: Corpus, data: Path | None, split: str, path: Path) -> dict[str, Any]:
    path.unlink(missing_ok=True)
    digest, count = hashlib.sha256(), 0
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        try:
            for text in corpus.read(partial(_find, corpus, data), split, **corpus.options):
                line = _line(text)
                file.write(line)
                digest.update(line)
                count += 1
        except UnicodeEncodeError:
            raise BadInput(f"record {count + 1} of {split} holds half a character (a lone surrogate)") from None
        if not count:
            raise BadInput(f"no records for the split {split}")
        file.flush()
        os.fsync(file.fileno())
    return {"records": count, "sha256": digest.hexdigest()}


def _line(text: Text) -> bytes:
    row: dict[str, Any] = {"id": text.id, "text": text.text}
    if text.secrets is not None:
        row["secrets"] = [{"start": start, "end": end, "type": kind} for start, end, kind in text.secrets]
    if text.label is not None:
        row["label"] = text.label
    return (json.dumps(row, ensure_ascii=False) + "\n").encode()


def _find(corpus: Corpus, data: Path | None, *names: str) -> list[Path]:
    """The files of the first of these names (or patterns) that is there, plain or gzipped."""
    wanted = " or ".join(names)
    if data is None:
        raise BadInput(f"needs --data, a folder with {wanted}")
    folders = [data / corpus.name, *(data / folder for folder in corpus.folders), data]
    for folder in folders:
        for name in names:
            for suffix in ("", ".gz"):
                if found := sorted(path for path in folder.glob(name + suffix) if path.is_file()):
                    return found
    raise BadInput(f"no file {wanted} (or the same with .gz) in {', '.join(map(str, folders))}")


# -- which there are --------------------------------------------------------------------------------------------------

_GLUE = "Get it from gluebenchmark.com/tasks; each task has its own terms, for research."
_TENTHS = "split in the file's order: the first 8 tenths train, then a tenth each to validate and to test"
_HELD = "dev tests, and the last 2,000 rows of train (a tenth if it has fewer than 20,000) validate"

# fmt: off
_ALL = (
    Corpus(
        "customersim",
        "Our simulated customer service, 10,000 dialogues to train and 1,000 each to validate and to test; secrets known exactly",
        "It is made on the spot and needs no data.",
        published.simulated, options={"count": 10_000, "seed": 0, "crowd": customersim.PEOPLE},
    ),
    Corpus(
        "customersim-small",
        "A small one of the same simulator, to try things with: 200 dialogues to train and 20 each to validate and to test",
        "It is made on the spot and needs no data.",
        published.simulated, options={"count": 200, "seed": 0, "crowd": 240},
    ),
    Corpus(
        "customersim-other",
        "Other small ones, whose words make a vocabulary that owes nothing to the first",
        "It is made on the spot and needs no data.",
        published.simulated, options={"count": 200, "seed": 1, "crowd": 240},
    ),
    Corpus(
        "customersim-original",
        "The S-DP paper's CustomerSim without its ten canary lines; names by its table of people, other secrets by format",
        "Get data/simdial and simdial_privacy/database from github.com/wyshi/lm_privacy (MIT).",
        published.original, ("customersim",),
    ),
    Corpus(
        "multiwoz22",
        "MultiWOZ 2.2, whole dialogues; secrets are labelled reference numbers, phones, postcodes and addresses",
        "Get data/MultiWOZ_2.2 from github.com/budzianowski/multiwoz (MIT).",
        published.multiwoz22, ("MultiWOZ_2.2", "data/MultiWOZ_2.2", "multiwoz"),
    ),
    Corpus(
        "multiwoz21",
        f"MultiWOZ 2.1 val and test in ConvLab-2's form, tokenised, {_TENTHS}; secrets as in multiwoz22",
        "Get data/multiwoz from github.com/thu-coai/ConvLab-2 (Apache 2.0; the data MIT).",
        published.multiwoz21, ("multiwoz",),
    ),
    Corpus(
        "multiwoz-turns",
        f"Single turns of MultiWOZ 2.2's first training file, {_TENTHS}; nobody knows the secrets",
        "Get it from github.com/XavierXinchi/Slot-Extraction-from-MultiWOZ (the data MIT).",
        published.single_turns, ("multiwoz",),
    ),
    Corpus(
        "wikitext2",
        "WikiText-2 raw; a record is a line that is not blank, headings included; nobody knows the secrets",
        "Get data/wikitext-2-raw from github.com/wyshi/sdp_transformers (CC BY-SA 3.0).",
        published.wikitext, ("wikitext-2-raw",),
    ),
    Corpus(
        "abcd",
        "ABCD, its own splits; secrets are what the customer's card says, wherever it stands in the conversation",
        "Get data/abcd_v1.1.json.gz from github.com/asappresearch/abcd (MIT).",
        published.abcd, ("data",),
    ),
    Corpus(
        "abcd-text",
        f"ABCD's dev split as JFT's plain text, by conversation {_TENTHS}; nobody knows the secrets",
        "Get abcd_original_valid.txt from github.com/wyshi/sdp_transformers (MIT).",
        published.abcd_text, ("abcd",),
    ),
    Corpus(
        "sst2", f"GLUE SST-2, sentences with a sentiment; {_HELD}", _GLUE, published.glue, ("SST-2",),
        {"task": "sst2", "columns": ("sentence",), "label": "label", "labels": ("0", "1")},
    ),
    Corpus(
        "mnli", f"GLUE MNLI, pairs of sentences, dev_matched; {_HELD}", _GLUE, published.glue, ("MNLI",),
        {"task": "mnli", "columns": ("sentence1", "sentence2"), "label": "gold_label", "dev": "dev_matched",
         "labels": ("entailment", "neutral", "contradiction")},
    ),
    Corpus(
        "qqp", f"GLUE QQP, pairs of questions, without rows torn by a line end (20 at most); {_HELD}", _GLUE, published.glue, ("QQP",),
        {"task": "qqp", "columns": ("question1", "question2"), "label": "is_duplicate", "labels": ("0", "1"), "torn": 20},
    ),
    Corpus(
        "qnli", f"GLUE QNLI, a question and a sentence; {_HELD}", _GLUE, published.glue, ("QNLI",),
        {"task": "qnli", "columns": ("question", "sentence"), "label": "label", "labels": ("entailment", "not_entailment")},
    ),
)
# fmt: on
CORPORA: dict[str, Corpus] = {corpus.name: corpus for corpus in _ALL}


def people_file(data: Path | None) -> Path:
    """The original CustomerSim's table of people: the ground truth for its names."""
    corpus = CORPORA["customersim-original"]
    try:
        return _find(corpus, data, "database_20000.csv")[0]
    except BadInput as error:
        raise BadInput(f"{corpus.name}: {error}. {corpus.where}") from None
