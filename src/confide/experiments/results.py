"""What is known of a study so far: finished jobs in; rows, and their means with intervals over seeds, out. No number is typed by hand."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..accounting.guarantees import up
from ..errors import ConfideError
from .jobs import FINISHED, Bench
from .numbers import BOUNDS, epochs, events_of, numbers
from .scales import Scale
from .study import Planned, Study, jobs

FEWEST = 3  # seeds that give an interval
Key = tuple[str, float | None]  # a row's name, and the value of the sweep


@dataclass(frozen=True)
class Point:
    """Mean and standard deviation of a column over seeds, and a 95 % interval of the mean, if one is known."""

    mean: float
    deviation: float
    number: int  # of runs; 0: it is published
    interval: tuple[float, float] | None = None


def _point(rows: Sequence[dict[str, Any]], column: str) -> Point:
    """The interval is Student's over seeds; of fewer than `FEWEST` runs it is their own, by the records they were judged on."""
    found = [row[column] for row in rows]
    if not all(map(math.isfinite, found)):
        return Point(math.inf, 0.0, len(found))
    if column in BOUNDS:
        return Point(max(found), 0.0, len(found))
    mean, deviation, interval = statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else 0.0, None
    if len(found) >= FEWEST:
        from scipy.stats import t

        half = float(t.ppf(0.975, len(found) - 1)) * deviation / math.sqrt(len(found))
        interval = mean - half, mean + half
    elif all(f"{column}_low" in row for row in rows):
        interval = tuple(statistics.fmean(row[f"{column}_{end}"] for row in rows) for end in ("low", "high"))  # type: ignore[assignment]
    return Point(mean, deviation, len(found), interval)


@dataclass(frozen=True)
class Result:
    """What is known of a study so far."""

    study: Study
    scale: Scale
    rows: tuple[dict[str, Any], ...]  # of the CSV: one a job, or one a job and epoch
    left: int  # jobs that are not done
    refused: tuple[str, ...]  # runs that do not count, with the reason
    first_left: int = 0  # of the jobs that are not done, those of the first seed

    def point(self, key: Key, column: str) -> Point | None:
        rows = [row for row in self.rows if (row["row"], row["value"]) == key and row.get(column) is not None]
        return _point(rows, column) if rows else None

    def published(self, row: str, column: str) -> Point | None:
        found = next((one[column] for one in self.study.published if one["row"] == row and column in one), None)
        return None if found is None else Point(float(found), 0.0, 0)

    @property
    def keys(self) -> list[Key]:
        return list(dict.fromkeys((row["row"], row["value"]) for row in self.rows))

    def values(self, row: str) -> list[float | None]:
        """The values of the sweep at which a row was measured; a row that no sweep touches stands at all of them."""
        return [value for name, value in self.keys if name == row]


def collect(study: Study, scale: Scale, bench: Bench) -> Result:
    """Read off what was done. Runs whose certificate or data do not hold are named, and left out."""
    rows: list[dict[str, Any]] = study.computed() if study.computed is not None else []
    refused, left, first_left = [], 0, 0
    for one in jobs(study, scale):
        if bench.finished(one.job) is None:
            left += 1
            first_left += one.seed == 0
            continue
        try:
            missed = missed_on_purpose(one)
            many = (
                epochs(one.job, bench, missed)
                if study.each_epoch and one.job.each_epoch
                else [numbers(one.job, bench, missed)]
            )
        except (ConfideError, OSError) as error:
            refused.append(f"{bench.run(one.job).name}: {str(error).replace(f'{bench.folder}/', '')}")
            continue
        except (ValueError, KeyError, TypeError):
            refused.append(f"{bench.run(one.job).name}: a file of it is damaged; remove its folder and do it again")
            continue
        rows += [
            {"row": one.row.name, "value": found.pop("epoch", one.value), "seed": one.seed, **found} for found in many
        ]
        if study.split == "valid" and "guarantee" in rows[-1]:
            folder = bench.finished(one.job)
            assert folder is not None
            rows[-1] |= {"corpus": one.job.corpus, "events": events_of(folder)}
    return Result(study, scale, tuple(rows), left, tuple(refused), first_left)


def missed_on_purpose(one: Planned) -> float:
    """The share of secrets that the policy of a job misses, by construction."""
    policy = str(one.job.screen["policy"])
    return float(policy.rsplit(",", 2)[1]) if policy.startswith("miss(") else 0.0


def as_csv(result: Result) -> str:
    names = [
        "row",
        "value",
        "seed",
        *dict.fromkeys(name for row in result.rows for name in row if name not in ("row", "value", "seed", "events")),
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items() if name != "events"}
        for row in result.rows
    )
    return text.getvalue()


def swept(study: Study) -> str:
    return study.sweep.name if study.sweep is not None else "epoch"


def comparable(study: Study, names: Iterable[str]) -> dict[str, list[str]]:
    """Rows by model and corpus: what compares, and is drawn together."""
    about = {row.name: f"{row.model}-{row.corpus}" for row in study.rows}
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(about.get(name, ""), []).append(name)
    return found


def show(column: str, point: Point | None) -> str:
    if point is None:
        return "–"
    if not math.isfinite(point.mean):
        return "none finite" if column in BOUNDS else "infinite"
    if column in BOUNDS:
        return up(point.mean)
    if column == "canaries":
        return f"{point.mean:g}"
    digits = 1 if point.mean >= 100 else 2 if point.mean >= 1 else 3
    if point.mean >= 1e5:
        return f"{point.mean:.1e}"
    if point.number > 1:
        return f"{point.mean:.{digits}f} ± {point.deviation:.{digits}f}"
    spread = "" if point.interval is None else f" [{point.interval[0]:.{digits}f}, {point.interval[1]:.{digits}f}]"
    return f"{point.mean:.{digits}f}{spread}"


def left_of(studies: Sequence[Study], scale: Scale, bench: Bench) -> list[dict[str, Any]]:
    """For each study: jobs, those done, and how many seconds the rest will take, by what runs of their kind took; None: unknown."""
    known: dict[tuple[str, str, str], list[float]] = {}
    planned = {study.name: {one.job.key: one.job for one in jobs(study, scale)} for study in studies}
    for job in {key: job for some in planned.values() for key, job in some.items()}.values():
        done = bench.finished(job)
        if done is not None:
            with contextlib.suppress(
                ValueError, KeyError, TypeError, AttributeError
            ):  # a damaged run is named where it is shown
                seconds = json.loads((done / FINISHED).read_text(encoding="utf-8"))["seconds"]
                known.setdefault(job.kind, []).append(sum(seconds.values()) / job.size)
    everything = [rate for rates in known.values() for rate in rates]
    found = []
    for study in studies:
        open_jobs = [job for job in planned[study.name].values() if bench.finished(job) is None]
        rates = [known.get(job.kind) or everything for job in open_jobs]
        seconds = (
            sum(statistics.median(rate) * job.size for rate, job in zip(rates, open_jobs, strict=True))
            if all(rates)
            else None
        )
        found.append(
            {
                "study": study.name,
                "paper": study.paper,
                "title": study.title,
                "jobs": len(planned[study.name]),
                "left": len(open_jobs),
                "seconds": seconds,
            }
        )
    return found
