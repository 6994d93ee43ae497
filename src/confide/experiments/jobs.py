"""A job is one run of a study: a corpus, how it is screened, trained, attacked and judged come in; a run's folder comes out.

Everything in a job is public, and its key is a hash of all of it: what was done is never done again, what was interrupted
goes on where it was. `job.json` is written last, so that a folder that has it is whole. What a page needs of a run, some
kilobytes of numbers with the ledger and the certificate behind them, can be kept beside the page.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from hashlib import file_digest, sha256
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import BadInput, Contradiction
from ..plain_yaml import CONFIG
from ..policies import load, merged
from ..records import Fields
from ..screening import Screened, screen
from . import corpora
from .pretrained import PACKAGES, folder_of

UNTRAINED = "untrained"
PRIVATE_LINE = "[...]"
STRICTEST = "high-contextual"
FINISHED, EVALUATION, EPOCHS = "job.json", "evaluation.json", "epochs.jsonl"
ATTACKS = "attacks.json"
KEPT = ("ledger.jsonl", "certificate.json", ATTACKS, EVALUATION, EPOCHS, FINISHED)  # the last one last
# What is kept of attacks.json: numbers over many records, never one record's or an error's words
OF_ATTACKS = {"exposure": ("max", "mean", "number", "chance"), "membership": ("strongest", "blind", "group", "papers")}
LINE = re.compile(r"[^\n]+")
Tick = Callable[[int, int], object]


@dataclass(frozen=True)
class Job:
    """One run. In `screen` and `train`, {people} stands for the corpus's table of people and {vocabulary} for the outside text."""

    corpus: str
    screen: Mapping[str, Any]
    train: Mapping[str, Any]  # the method "untrained" judges a model as it comes
    attack: Mapping[str, Any] | None = None
    documents: int | None = None  # the first so many of the training split; None: all
    tests: int = 100  # the first so many of the test split
    split: str = "test"  # what it is judged on: of a search, "valid"
    vocabulary: str | None = None  # the corpus that a vocabulary is made from
    start: Job | None = None  # train from this job's model
    public_only: bool = False  # train on the public lines of what `screen` makes of the corpus, and on nothing else
    each_epoch: bool = False  # judge after every epoch too

    @property
    def key(self) -> str:
        return sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        return f"{self.corpus}-{self.train['method']}-{self.key}"

    @property
    def size(self) -> float:
        """What a run's time grows with, in the same corpus, model and method: documents times epochs."""
        epochs = self.train.get("epochs", 3)
        if self.train["method"] == "jft":
            epochs += self.train.get("phase1_epochs", epochs)
        return float((self.documents or 10_000) * epochs)

    @property
    def kind(self) -> tuple[str, str, str]:
        """Runs of one kind take times that compare."""
        return self.corpus, str(self.train["model"]).partition(":")[0], str(self.train["method"])


@dataclass(frozen=True)
class Bench:
    """Where jobs are done: the folder of everything that is made, the folder of the data sets, and what is kept of earlier runs."""

    folder: Path
    data: Path | None = None
    kept: Path | None = None
    reference: str | None = (
        None  # the tokenizer whose tokens perplexity is per; None: GPT-2's below `data`, or of the hub
    )
    own_tokens: bool = False  # perplexity per token of the model's own, for trials

    def run(self, job: Job) -> Path:
        return self.folder / "runs" / job.name

    def finished(self, job: Job) -> Path | None:
        """The folder of a job that was done, here or earlier; None if it is not done."""
        places = [self.run(job)] if self.kept is None else [self.run(job), self.kept / job.name]
        return next((place for place in places if (place / FINISHED).is_file()), None)

    def keep(self, job: Job) -> None:
        """Keep of a finished run what the page is made from."""
        folder = self.run(job)
        if self.kept is None or not (folder / FINISHED).is_file() or self.kept.resolve() == folder.parent.resolve():
            return
        kept = self.kept / job.name
        kept.mkdir(parents=True, exist_ok=True)
        for name in KEPT[:-1]:
            if (folder / name).exists():
                text = (folder / name).read_text(encoding="utf-8")
                (kept / name).write_text(_kept_of_attacks(text) if name == ATTACKS else text, encoding="utf-8")
        done = json.loads((folder / FINISHED).read_text(encoding="utf-8"))
        _write(kept / FINISHED, {**done, "files": file_digests(kept)})

    def corpus(self, name: str) -> Path:
        """The folder of a corpus's splits, made if it is not there."""
        folder = self.folder / "corpora" / name
        with locked(folder):
            corpora.write(name, self.data, folder)
        return folder

    def digest(self, name: str, split: str) -> str:
        return _digest(self.corpus(name) / f"{split}.jsonl")

    def sdp_tokens(self, name: str, split: str, number: int) -> int:
        """The tokens of the first dialogues of a split as S-DP counted them: line by line, the speaker's tag as one token."""
        return _sdp_tokens(self.corpus(name) / f"{split}.jsonl", number, self)

    def reference_tokens(self, name: str, split: str, number: int) -> dict[str, int]:
        """The reference tokenizer's tokens of the first texts of a split, as they are and line by line."""
        return _reference_tokens(self.corpus(name) / f"{split}.jsonl", number, self)

    def tokenizer(self) -> Any:
        """The reference tokenizer; None where each model's own tokens count."""
        from ..models.tokens import pretrained

        if self.own_tokens:
            return None
        beside = [] if self.data is None else [self.data / "tokenizers" / "gpt2", self.data / "gpt2"]
        named = self.reference or next((str(one) for one in beside if (one / "tokenizer.json").exists()), "gpt2")
        return pretrained(named)

    def misses(self, job: Job) -> dict[str, float]:
        """Of the secrets in the texts that a job is judged on, by ground truth: which share its policy misses, but for what it misses on purpose,
        and which share stands where neither policy flags anything; none where nobody knows the secrets."""
        policy = str(job.screen["policy"])
        if policy.startswith("miss("):
            policy = policy[len("miss(") :].rsplit(",", 2)[0]
        return _misses(
            self.corpus(job.corpus) / f"{job.split}.jsonl", job.tests, str(self._filled(policy)), str(job.screen["conservative"]),
            str(job.screen["unit"]),
        )  # fmt: skip

    def screened_name(self, job: Job) -> str:
        """The name of a job's screened corpus: a digest of the text and of how it is screened."""
        plain = json.dumps(
            [job.corpus, job.documents, self.digest(job.corpus, "train"), dict(job.screen)], sort_keys=True
        )
        return f"{job.corpus}-{sha256(plain.encode()).hexdigest()[:12]}"

    def screened(self, job: Job) -> Screened:
        """The screened corpus of a job; jobs that screen alike share it."""
        if job.public_only:
            return self._public_alone(job)
        folder = self.folder / "screened" / self.screened_name(job)
        with locked(folder):
            if not folder.exists():
                options = {name: self._filled(value) for name, value in job.screen.items()}
                if job.train.get("task") == "classify":
                    options["fields"] = Fields(label="label")
                with _first(self.corpus(job.corpus) / "train.jsonl", job.documents, folder) as texts:
                    screen(str(texts), options.pop("policy"), folder, workers=1, **options)
        return Screened.open(folder)

    def _public_alone(self, job: Job) -> Screened:
        """The documents of a corpus screened by lines, with a constant in place of every private line, as a corpus of their own.

        *Formal guarantees.* Which lines are private, and the text of the others, is the same whatever a flagged secret was (guarantees
        §2-3), and so is this corpus: a model of it, trained without noise, is as good as one from outside.
        """
        whole = self.screened(replace(job, public_only=False))
        folder = whole.folder.with_name(f"{whole.folder.name}-public")
        with locked(folder):
            if not folder.exists():
                texts = folder.with_suffix(".jsonl")
                texts.write_text(
                    "".join(json.dumps({"text": text}) + "\n" for text in skeletons(whole)), encoding="utf-8"
                )
                policy = self._filled(job.screen["policy"])
                screen(str(texts), policy, folder, unit="document", conservative="everything", dedup="off", workers=1)
                texts.unlink()
        return Screened.open(folder)

    def _by_hand(self, corpus: str, number: int) -> Path:
        """The first documents of a corpus as a person might leave them; in the person's stead, the strictest detector masks."""
        file = self.folder / "by hand" / f"{corpus}-{number}.jsonl"
        with locked(file):
            if not file.exists():
                strict = load(STRICTEST)
                with open(self.corpus(corpus) / "train.jsonl", encoding="utf-8") as texts:
                    rows = [json.loads(line) for line in islice(texts, number)]
                masked = [{**row, "text": _masked(row["text"], merged(strict.find(row["text"])))} for row in rows]
                file.write_text("".join(json.dumps(row) + "\n" for row in masked), encoding="utf-8")
        return file

    def _filled(self, value: Any) -> Any:
        if isinstance(value, str) and "{people}" in value:
            return value.replace(
                "{people}",
                str(corpora.people_file(self.data)),
            )
        return value

    def options(self, job: Job) -> dict[str, Any]:
        """The training options of a job, with the files that they name."""
        found = dict(job.train)
        if "screened_by_hand" in found:
            found["screened_by_hand"] = str(self._by_hand(job.corpus, int(found["screened_by_hand"])))
        if found["model"] in PACKAGES:
            with locked(self.folder / "models" / found["model"]):
                found["model"] = str(folder_of(found["model"], self.folder / "models"))
        if job.start is not None:
            found["model"] = str(self.run(job.start) / "model")
        elif job.vocabulary is not None:
            found["vocabulary_from"] = str(self.corpus(job.vocabulary) / "train.jsonl")
        return found


def _file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


_digest = cache(_file_digest)


@cache
def _reference_tokens(path: Path, number: int, bench: Bench) -> dict[str, int]:
    with open(path, encoding="utf-8") as file:
        texts = [json.loads(row)["text"] for row in islice(file, number)]
    lines = [line for text in texts for line in LINE.findall(text)]
    read = partial(bench.tokenizer(), add_special_tokens=False, split_special_tokens=True, verbose=False)
    return {name: sum(map(len, read(some)["input_ids"])) for name, some in (("documents", texts), ("lines", lines))}


@cache
def _misses(path: Path, number: int, policy: str, conservative: str, unit: str) -> dict[str, float]:
    caught, flagged = load(policy).find, load(conservative).find
    secrets = missed = unflagged = 0
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in islice(file, number)]
    for row in rows:
        units = [(0, len(row["text"]))] if unit == "document" else [one.span() for one in LINE.finditer(row["text"])]
        for low, high in units:
            inside = [one for one in row.get("secrets", ()) if low <= one["start"] and one["end"] <= high]
            if not inside:
                continue
            spans = merged(caught(row["text"][low:high]))
            private = bool(spans) or bool(flagged(row["text"][low:high]))
            for one in inside:
                secrets += 1
                if not any(start <= one["start"] - low and one["end"] - low <= end for start, end in spans):
                    missed += 1
                    unflagged += not private
    return {"policy_misses": missed / secrets, "neither_flags": unflagged / secrets} if secrets else {}


@cache
def _sdp_tokens(path: Path, number: int, bench: Bench) -> int:
    tokenizer = bench.tokenizer()
    with open(path, encoding="utf-8") as file:
        lines = [line for row in islice(file, number) for line in json.loads(row)["text"].split("\n")]
    said = [re.sub(r"^(SYS|USR):", "", line).strip() for line in lines]
    return len(lines) + sum(len(tokens) for tokens in tokenizer(said, add_special_tokens=False)["input_ids"])


def _kept_of_attacks(text: str) -> str:
    found = json.loads(text)
    parts = {
        part: {name: found[part][name] for name in names if name in found[part]}
        for part, names in OF_ATTACKS.items()
        if part in found
    }
    return json.dumps({**parts, "contradictions": found.get("contradictions", [])}, indent=1) + "\n"


def _masked(text: str, spans: Iterable[tuple[int, int]]) -> str:
    for start, end in sorted(spans, reverse=True):
        text = f"{text[:start]}<MASK>{text[end:]}"
    return text


def skeletons(screened: Screened) -> Iterator[str]:
    """The documents of a corpus that was screened by lines, private lines left out but for their place."""
    documents: dict[str, dict[int, str]] = {}
    for part in ("public", "private"):
        for batch in screened.batches(part, ("id", "group", "text") if part == "public" else ("id", "group")):
            for row in batch.to_pylist():
                line = int(row["id"].rpartition("/")[2])
                documents.setdefault(row["group"], {})[line] = row.get("text", PRIVATE_LINE)
    for lines in documents.values():
        yield "\n".join(lines[number] for number in sorted(lines))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time makes what lies at a path; the others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _first(texts: Path, documents: int | None, beside: Path) -> Iterator[Path]:
    """A file of the first lines of a file."""
    if documents is None:
        yield texts
        return
    some = beside.with_name(f".{beside.name}.jsonl")
    with open(texts, encoding="utf-8") as source, open(some, "w", encoding="utf-8") as target:
        target.writelines(islice(source, documents))
    yield some
    some.unlink()


def make(job: Job, bench: Bench, tick: Tick = lambda done, total: None) -> Path:
    """Do a job, or go on with it."""
    folder = bench.run(job)
    if (folder / FINISHED).exists():
        return folder
    if job.start is not None:
        make(job.start, bench, tick)
    with locked(folder):
        if (folder / FINISHED).exists():  # another process has done it meanwhile
            return folder
        began = time.monotonic()
        _train(job, bench, folder, tick)
        trained = time.monotonic()
        if not (folder / EVALUATION).exists():
            found = judge(job, bench, *_load(job, bench, folder))
            _write(folder / EVALUATION, found)
        if job.attack is not None and not (folder / ATTACKS).exists():
            _attack(job, folder)
        seconds = {"train": trained - began, "judge and attack": time.monotonic() - trained}
        published = _published(job, folder)
        if job.train["method"] in ("redacted", "anonymized", "crt", "jft"):
            published["redacted"] = _redacted(bench.screened(job))
        data = {split: bench.digest(job.corpus, split) for split in ("train", job.split)}
        for name in ("checkpoints", "screened"):  # states and tokens of every run would fill the disk
            shutil.rmtree(folder / name, ignore_errors=True)
        _write(
            folder / FINISHED,
            {"key": job.key, "job": asdict(job), "data": data, "seconds": seconds, "published": published},
        )
    return folder


def _train(job: Job, bench: Bench, folder: Path, tick: Tick) -> None:
    from ..training import make_plan, plan_of, train_plan

    if job.train["method"] == UNTRAINED:
        folder.mkdir(parents=True, exist_ok=True)
        return
    if (folder / "model").exists():
        return
    begun = (folder / CONFIG).exists()
    plan = plan_of(folder) if begun else make_plan(bench.screened(job), **bench.options(job))
    watch = _watch(job, bench, folder) if job.each_epoch else None
    train_plan(plan, folder, resume=begun, tick=tick, after_epoch=watch)


def _published(job: Job, folder: Path) -> dict[str, float]:
    """The ε that the S-DP paper would state for its own algorithm, which no certificate holds."""
    from ..training import plan_of

    if job.train.get("variant") != "paper":
        return {}
    return {"paper_epsilon": plan_of(folder).summary()["published_epsilon"]["epsilon"]}


def _redacted(screened: Screened) -> float:
    """The share of the corpus's characters that the policy finds."""
    found = characters = 0
    for part, column in (("public", "text"), ("private", "raw")):
        for batch in screened.batches(part, (column, "spans") if part == "private" else (column,)):
            for row in batch.to_pylist():
                characters += len(row[column])
                ends = 0
                for span in sorted(row.get("spans") or (), key=lambda one: int(one["start"])):
                    found += max(0, span["end"] - max(span["start"], ends))
                    ends = max(ends, span["end"])
    return found / characters if characters else 0.0


def _watch(job: Job, bench: Bench, folder: Path) -> Callable[..., None]:
    """What is called after each epoch: it judges the model, and changes nothing."""

    def watch(model: Any, tokenizer: Any, phase: str, epoch: int, spent: Mapping[str, int]) -> None:
        with open(folder / EPOCHS, "a", encoding="utf-8") as file:
            found = judge(replace(job, tests=min(job.tests, 100)), bench, model, tokenizer)
            file.write(json.dumps({"phase": phase, "epoch": epoch, "spent": dict(spent), **found}) + "\n")

    return watch


def _load(job: Job, bench: Bench, folder: Path) -> tuple[Any, Any]:
    from ..models import build, load_tokenizer, load_trained

    if job.train["method"] != UNTRAINED:
        return load_trained(folder / "model")
    options = bench.options(job)
    outside = options.get("vocabulary_from")
    tokenizer, _ = load_tokenizer(
        None, options["model"], public_texts=lambda: iter(()), vocabulary_size=options.get("vocabulary_size", 300),
        external=None if outside is None else Path(outside),
    )  # fmt: skip
    return build(options["model"], tokenizer, seed=options.get("seed", 0)), tokenizer


def judge(job: Job, bench: Bench, model: Any, tokenizer: Any) -> dict[str, Any]:
    """How well a model predicts held-out text as it was: whole documents and single lines, or the classes of a classifier."""
    from ..training.evaluation import evaluate, evaluate_classes
    from ..training.validation import Held

    length = int(job.train.get("max_length", 256))
    with open(bench.corpus(job.corpus) / f"{job.split}.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in islice(file, job.tests)]
    if job.train.get("task") == "classify":
        classes = list(job.train["classes"])
        labels = [classes.index(row["label"]) for row in rows]
        return {"classes": evaluate_classes(model, tokenizer, [row["text"] for row in rows], labels, max_length=length)}
    whole, lines = [], []
    # S-DP's private tokens are those that its policy finds: where nobody knows the secrets, these are judged apart
    found = load("digits").find if job.screen["policy"] == "digits" else None
    for row in rows:
        spans = [(one["start"], one["end"]) for one in row["secrets"]] if "secrets" in row else None
        if spans is None and found is not None:
            spans = merged(found(row["text"]))
        whole.append(Held(row["text"], None if spans is None else tuple(spans)))
        for low, high in (match.span() for match in LINE.finditer(row["text"])):
            inside = None if spans is None else tuple(
                (max(start, low) - low, min(end, high) - low) for start, end in spans if start < high and end > low
            )  # fmt: skip
            lines.append(Held(row["text"][low:high], inside))
    reference = bench.tokenizer()
    return {
        name: evaluate(model, tokenizer, held, reference=reference, max_length=length)
        for name, held in (("documents", whole), ("lines", lines))
        if name == "documents" or len(lines) > len(whole)
    }


def _attack(job: Job, folder: Path) -> None:
    from ..attacks import attack

    assert job.attack is not None
    try:
        attack(folder, **job.attack)
    except Contradiction:  # it is in attacks.json, and results show it
        pass
    except BadInput:
        if not (folder / ATTACKS).exists():
            raise


def file_digests(folder: Path) -> dict[str, str]:
    """What the files of a finished run are, but for the last of them, which says it."""
    return {name: _file_digest(folder / name) for name in KEPT[:-1] if (folder / name).exists()}


def _write(path: Path, found: dict[str, Any]) -> None:
    draft = path.with_suffix(".partial")
    draft.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)
