"""Screening from end to end: a corpus in, a folder with a public and a private part out."""

from __future__ import annotations

import contextlib
import json
import os
import secrets as entropy
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import __version__, readers
from ..errors import BadInput, ConfideError, meant
from ..policies import Policy, load
from ..records import MASK, Bad, Chunk, Record, Turn
from ..rundir import write_private
from ..sources import File, sources
from .batches import DIGEST, content_digest, notes_of
from .canaries import CanaryChunk, canary_chunk, parse_canaries, plant
from .dedup import Bloom, Shuffle, bloom_copies, verified_copies
from .executors import Executor, Job, executor
from .manifest import Filter, checksum, manifest, policy_files
from .options import CHUNK, Options
from .output import SENSITIVE, Parts, finish, footer_digest, partial_folder, read_table, write_table
from .screened import Screened
from .slots import IDENTITY, PRIVATE, PUBLIC, Later, Marked, enter, enter_ids, flat_digests
from .treatment import blank

Tick = Callable[[int], object]


def screen(
    corpus: str | Sequence[str],
    policy: str | None = None,
    out: str | Path = "screened",
    *,
    options: Options | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    resume: bool = False,
    key: bytes | None = None,
    tick: Tick = lambda size: None,
    **choices: Any,
) -> Screened:
    """Split, route, redact and deduplicate a corpus into a public and a private part.

    `corpus`: files, folders, globs or URIs. Further `choices` are those of `Options`. `key`: of the digests; drawn at
    random if not given. `tick` is called with the bytes of each chunk that is done.

    *Formal guarantees.* Splitting comes before everything else and never again; each record is treated alone; a record with a
    mask or a finding is private; with the default order dedup looks at redacted private text only and keeps every slot.
    Hence masking one secret in the split corpus leaves the public part and the number of private records as they are, and
    changes at most `k` private records, the k of the manifest (guarantees §2-3).
    """
    if options is None:
        if policy is None:
            raise BadInput("name a policy: what counts as a secret? `confide policies` lists them")
        known = {field.name for field in fields(Options)}
        unknown = sorted(choices.keys() - known)
        if unknown:
            named = meant(unknown[0], known) or f"; known are {', '.join(sorted(known))}"
            raise BadInput(f"unknown screening option {unknown[0][:40]!r}{named}")
        options = Options(policy, **choices)
    options = options.checked()
    found, conservative = load(options.policy), load(options.conservative)
    if found.whole_group or conservative.whole_group:
        options = replace(options, context="group").checked()
    out = Path(out)
    files = sources([corpus] if isinstance(corpus, str) else list(corpus))
    if key is not None and not 16 <= len(key) <= 64:
        raise BadInput("the key of the digests has 16 to 64 bytes")
    given_key = key is not None
    plan = _plan(files, options, (found, conservative))
    with _disk(out), partial_folder(out, plan, resume) as folder:
        if not (folder / "manifest.json").exists():
            key = _key(folder, key)
            write_private(folder / "SENSITIVE", SENSITIVE)
            made_from = [policy_files(one, key) for one in (found, conservative)]  # as they are now: a review compares
            work = _Work(folder, files, options, key, tick)
            with executor(options, key, workers or _workers(files), cluster) as run:
                work.run(run)
            manifest = work.write(found, conservative, given_key)
            manifest["policy"]["files"], manifest["conservative"]["files"] = made_from
            manifest["footers"] = {
                f"{part}/{path.name}": footer_digest(path, key)
                for part in ("private", "public")
                for path in sorted((folder / part).glob("*.parquet"))
            }
            manifest["corpus"] = [os.path.realpath(source.path) for source in files]
            manifest["checksum"] = checksum(manifest)
            write_private(folder / "manifest.json", json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
        finish(folder, out)
    return Screened.open(out)


@contextlib.contextmanager
def _disk(out: Path) -> Iterator[None]:
    """Failures of the disk, said as such. What is done is kept."""
    try:
        yield
    except (OSError, duckdb.Error, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        begun = os.path.exists(f"{out}.partial")
        kept = (
            f"what is done is kept in {out}.partial: go on with --resume"
            if begun
            else "nothing was written; name another folder with -o"
        )
        raise ConfideError(f"cannot write {out}: {reason}; {kept}") from None


@contextlib.contextmanager
def _or_abandoned(*parts: Parts) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for part in parts:
            part.abandon()
        raise


def _workers(files: Sequence[File]) -> int:
    """One process for a corpus of a chunk or two: starting others would take longer."""
    return 1 if 0 < corpus_size(files) <= 2 * CHUNK else os.cpu_count() or 1


def corpus_size(files: Sequence[File]) -> int:
    """Bytes of all files; 0 if some are compressed, so that nobody knows."""
    if any(source.compression for source in files):
        return 0
    return sum(source.filesystem.size(source.path) or 0 for source in files)


def _plan(files: Sequence[File], options: Options, policies: Sequence[Policy]) -> dict[str, Any]:
    """What must be the same when a screening is resumed: the corpus, the options, the policies' files, this program."""
    corpus = [(source.name, *_stamp(source.filesystem.info(source.path))) for source in files]
    paths = [path for policy in policies for path in policy.files if os.path.exists(path)]
    lists = [(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
    models = [policy.pipeline for policy in policies]
    found = {f"--{name.replace('_', '-')}": value for name, value in asdict(options).items()}
    found |= {"corpus": corpus, "policy file or model": [lists, models], "version of confide": __version__}
    return {name: blake2b(json.dumps(value).encode(), digest_size=DIGEST).hexdigest() for name, value in found.items()}


def _stamp(info: dict[str, Any]) -> tuple[Any, str]:
    changed = next((info[name] for name in ("mtime", "ETag", "etag", "LastModified", "created") if info.get(name)), "")
    return info.get("size"), str(changed)


def _key(folder: Path, given: bytes | None) -> bytes:
    """The key of all digests: drawn once, kept with the screened text and nowhere else."""
    path = folder / "key"
    if not path.exists():
        write_private(path, (given or entropy.token_bytes(32)).hex() + "\n")
    try:
        return bytes.fromhex(path.read_text().strip())
    except ValueError:
        raise BadInput(f"{path} is damaged; remove {folder} and screen again") from None


class _Work:
    """A screening under way in its partial folder."""

    def __init__(self, folder: Path, files: Sequence[File], options: Options, key: bytes, tick: Tick) -> None:
        self.folder, self.files, self.options, self.key, self.tick = folder, files, options, key, tick
        self.chunks, self.ids_given = 0, False
        self.counts: Counter[str] = Counter()
        self.bloom_delta = 0.0
        self.planted = self._canaries()

    def _canaries(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """What is planted, drawn once; the coins lie in a file of their own."""
        if self.options.canaries is None:
            return None
        paths = self.folder / "canaries.json", self.folder / "coins.json"
        if not all(path.exists() for path in paths):
            for path, plain in zip(paths, plant(parse_canaries(self.options.canaries)), strict=True):
                write_private(path, json.dumps(plain, indent=1) + "\n")
        try:
            planted, coins = (dict(json.loads(path.read_text("utf-8"))) for path in paths)
        except (ValueError, TypeError):
            raise BadInput(
                f"{paths[0]} or coins.json beside it is damaged; remove {self.folder} and screen again"
            ) from None
        return planted, coins

    def _chunks(self) -> Iterator[Chunk | CanaryChunk]:
        number = -1
        for chunk in readers.chunks(self.files, self.options.fields, self.options.text_as, self.options.chunk):
            number = chunk.number
            yield chunk
        if self.planted:
            yield canary_chunk(number + 1, *self.planted)

    def _path(self, number: int) -> Path:
        return self.folder / "work" / f"{number:08d}.arrow"

    def run(self, run: Executor) -> None:
        """Screen every chunk that is not done yet; each result is on disk before the next step."""
        if self.options.order == "redact-dedup":
            self._screen(run, None)
            return
        with Shuffle(self._fresh("paper")) as shuffle:
            self._screen(run, Later(self._copies(shuffle, self._compare_raw(run, shuffle), PRIVATE)))

    def _screen(self, run: Executor, duplicates: Later | None) -> None:
        todo: deque[tuple[int, int, str]] = deque()

        def jobs() -> Iterator[Job]:
            for chunk in self._chunks():
                self.chunks = chunk.number + 1
                self.ids_given |= chunk.ids_given
                mine = duplicates.of(chunk.number) if duplicates else None
                if self._is_done(chunk):
                    self.tick(_size(chunk))
                else:
                    todo.append((chunk.number, _size(chunk), self._stamp(chunk)))
                    yield "screen", (chunk, mine)

        for table in run(jobs()):
            number, size, stamp = todo.popleft()
            self._stop_at_bad(notes_of(table)["bad"])
            table = table.replace_schema_metadata({**table.schema.metadata, b"stamp": stamp})
            write_table(self._path(number), table, self.key)
            self.tick(size)

    def _stamp(self, chunk: Chunk | CanaryChunk) -> str:
        """A keyed digest of what a chunk was made from."""
        content = chunk.payload if isinstance(chunk.payload, bytes) else json.dumps(chunk.payload).encode()
        return blake2b(content, key=self.key).hexdigest()

    def _is_done(self, chunk: Chunk | CanaryChunk) -> bool:
        """Whether an earlier run has screened this very chunk, and its result is whole."""
        table = read_table(self._path(chunk.number), self.key)
        return table is not None and table.schema.metadata[b"stamp"].decode() == self._stamp(chunk)

    def _stop_at_bad(self, bad: list[Any]) -> None:
        if bad and not self.options.skip_bad:
            more = f", and {len(bad) - 1} more near it" if len(bad) > 1 else ""
            raise BadInput(
                f"{Bad(*bad[0])}{more}; nothing was written. Mend the corpus, or count and skip bad rows with --skip-bad"
            )

    def _compare_raw(self, run: Executor, shuffle: Shuffle) -> int:
        """The paper's order: a first pass over the corpus, in which all units are compared as they were read."""
        numbers: deque[int] = deque()

        def jobs() -> Iterator[Job]:
            for chunk in self._chunks():
                numbers.append(chunk.number)
                yield "raw_digests", (chunk,)

        return sum(shuffle.add(PRIVATE, *flat_digests(digests, numbers.popleft())) for digests in run(jobs()))

    def _fresh(self, name: str) -> Path:
        """A folder for a shuffle; what a killed run left there is removed."""
        shutil.rmtree(self.folder / "work" / name, ignore_errors=True)
        return self.folder / "work" / name

    def _copies(self, shuffle: Shuffle, units: int, part: int) -> Iterator[int]:
        """The slots of private duplicates, as the options want them found."""
        if self.options.dedup == "exact":
            return shuffle.later_copies(part, self.options.max_copies)
        bloom = Bloom(units, self.options.bloom_delta, self.key)
        if self.options.dedup == "bloom-verified":
            return verified_copies(shuffle.ordered(part), shuffle.ordered(part), bloom)
        self.bloom_delta = bloom.delta
        return bloom_copies(shuffle.ordered(part), bloom)

    def write(self, policy: Policy, conservative: Policy, given_key: bool) -> dict[str, Any]:
        """Deduplicate what was screened and write both parts. Out: the manifest."""
        labels = self.options.fields.label is not None
        public, private = Parts(self.folder, "public", labels), Parts(self.folder, "private", labels)
        with _or_abandoned(public, private), Shuffle(self._fresh("dedup")) as shuffle:
            for number in range(self.chunks if self.ids_given else 0):
                enter_ids(shuffle, self._read(number), number)
            units = self._enter(shuffle, Later(shuffle.later_copies(IDENTITY)))
            redact_first = units and self.options.order == "redact-dedup"
            masked = Later(self._copies(shuffle, units, PRIVATE) if redact_first else iter(()))
            near = self.options.public_dedup == "near"
            dropped = Later(shuffle.near_copies() if near else shuffle.later_copies(PUBLIC))
            total = 0
            for number in range(self.chunks):
                table = self._masked(self._read(number, checked=True), masked.of(number))
                table = self._without(table, dropped.of(number))
                flags = table["private"].combine_chunks()
                public.write(table.filter(pc.invert(flags)))
                private.write(table.filter(flags))
                total += _total(table)
                self.counts["mask-only"] += pc.sum(pc.and_(flags, pc.equal(table["text"], MASK))).as_py() or 0
            public.finish()
            private.finish()
        if not public.records + private.records:
            raise BadInput(
                "the corpus is empty: no row of it could be used; leave --skip-bad out to see the first that cannot"
            )
        digest = f"{total % (1 << 256):064x}"
        bloom = Filter(self.bloom_delta, not given_key)
        facts = (self.options, policy, conservative, self.counts, bloom)
        return manifest(*facts, public.records, private.records, digest, self.planted[0] if self.planted else None)

    def _read(self, number: int, checked: bool = False) -> pa.Table:
        table = read_table(self._path(number), None if checked else self.key)
        if table is None:
            raise ConfideError(f"the work file {self._path(number).name} was damaged; run again with --resume")
        return table

    def _enter(self, shuffle: Shuffle, doubled: Later) -> int:
        """Enter what is to be compared, and add up what was noted. Out: how many private units there are."""
        units = 0
        for number in range(self.chunks):
            table = self._read(number)
            notes = notes_of(table)
            self.counts.update(notes["counts"])
            self.counts["bad rows"] += len(notes["bad"])
            for name in ("largest group", "most units"):
                self.counts[name] = max(self.counts[name], notes[name])
            places = doubled.of(number)
            if places:
                table = self._without_doubles(number, table, places)
            units += enter(shuffle, table, number)
        return units

    def _without_doubles(self, number: int, table: pa.Table, places: Marked) -> pa.Table:
        """Leave out documents whose id an earlier one has, for good."""
        rows = sorted({table["row"][place].as_py() for place in places})
        name = table.schema.metadata[b"name"].decode()
        self._stop_at_bad([Bad(name, row, "an earlier row has the same id") for row in rows])
        self.counts["bad rows"] += len(rows)
        self.counts["documents"] -= len(rows)
        table = table.filter(pa.array(~np.isin(table["row"].to_numpy(), rows)))
        write_table(self._path(number), table, self.key)
        return table

    def _without(self, table: pa.Table, dropped: Marked) -> pa.Table:
        """Leave out public duplicates."""
        self.counts["public duplicates"] += len(dropped)
        keep = np.ones(len(table), dtype=bool)
        keep[list(dropped)] = False
        return table.filter(pa.array(keep)) if dropped else table

    def _masked(self, table: pa.Table, marked: Marked) -> pa.Table:
        """Put a mask in the place of private duplicates; every record keeps its place."""
        if not marked:
            return table
        changed = {name: table[name].to_pylist() for name in ("text", "turns", "content")}
        mine = table.take(list(marked))
        findings = pc.list_value_length(mine["spans"]).to_pylist()
        rows = mine.select(["id", "group", "text", "turns", "raw", "units", "label"]).to_pylist()
        for (place, which), row, count in zip(marked.items(), rows, findings, strict=True):
            turns = tuple(Turn(**turn) for turn in row["turns"] or ())
            units = [(unit["start"], unit["end"]) for unit in row["units"] or ()] or [(0, len(row["text"]))]
            record, _ = blank(Record(row["id"], row["text"], row["group"], turns), units, which, MASK)
            changed["text"][place] = record.text
            changed["turns"][place] = [turn._asdict() for turn in record.turns] or None
            changed["content"][place] = content_digest(self.key, record, row["raw"], count, row["label"])
            self.counts["private duplicates"] += len(which)
        for name, values in changed.items():
            at = table.schema.get_field_index(name)
            table = table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))
        return table


def _total(table: pa.Table) -> int:
    """The sum of the records' digests: equal for equal contents, in whatever order and files they lie."""
    return sum(int.from_bytes(digest, "big") for digest in table["content"].to_pylist())


def _size(chunk: Chunk | CanaryChunk) -> int:
    payload = chunk.payload
    return len(payload) if isinstance(payload, bytes) else sum(len(value) for row in payload for value in row)
