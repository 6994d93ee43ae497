"""The results of a study: finished jobs in; a CSV file, a figure, and a section of results.md out. No number is typed by hand."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from ..accounting import curve
from ..accounting.guarantees import up
from ..errors import ConfideError
from .jobs import FINISHED, Bench
from .numbers import COLUMNS, epochs, events_of, numbers
from .scales import SIMULATED, SMALL, Scale
from .study import Check, Planned, Study, jobs

if TYPE_CHECKING:
    from ..reporting.drawing import Chart

MADE_UP = (SIMULATED, SMALL)
UNMEASURED = "not measured yet"
FEWEST = 3  # seeds that give an interval
BOUNDS = ("epsilon", "bayesian", "amplified")  # rounded upwards, and the largest over seeds
VERDICTS = {True: "holds", False: "**does not hold**", None: "open"}
Key = tuple[str, float | None]  # a row's name, and the value of the sweep


@dataclass(frozen=True)
class Point:
    """Mean and standard deviation of a column over seeds, and a 95 % interval of the mean, if one is known."""

    mean: float
    deviation: float
    number: int
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
        return None if found is None else Point(float(found), 0.0, 1)

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
            missed = _missed(one)
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


def _missed(one: Planned) -> float:
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


def table(result: Result) -> tuple[list[str], list[list[str]]]:
    """The heading and the cells, mean and deviation over seeds, and what was published.

    Of a sweep: a line for each row and column, the values side by side; else a line for each row, the columns side by side.
    """
    study = result.study
    columns = [name for name in study.columns if any(name in row for row in (*result.rows, *study.published))]
    if study.sweep is None and not study.each_epoch:
        head = ["run", *(COLUMNS[name].strip() for name in columns), "seeds"]
        lines = []
        for key in result.keys:
            points = [result.point(key, column) for column in columns]
            number = max((one.number for one in points if one is not None), default=0)
            lines.append([key[0], *map(show, columns, points), str(number)])
        lines += [
            [f"published: {one['row']}", *(str(one.get(name, "–")) for name in columns), ""] for one in study.published
        ]
        return head, lines
    values = sorted({value for _, value in result.keys if value is not None})
    head = ["run", "what", *(f"{_swept(study)} {value:g}" for value in values), "seeds"]
    lines = []
    for name in dict.fromkeys(name for name, _ in result.keys):
        for column in columns:
            whole = result.point((name, None), column)  # of a row that the sweep does not touch
            points = [whole or result.point((name, value), column) for value in values]
            if any(points):
                number = max(one.number for one in points if one is not None)
                lines.append([name, COLUMNS[column].strip(), *(show(column, one) for one in points), str(number)])
    for one in study.published:
        for column in columns:
            if column in one:
                cells = [str(one[column]) if one.get("value", value) == value else "–" for value in values]
                lines.append([f"published: {one['row']}", COLUMNS[column].strip(), *cells, ""])
    return head, lines


def _swept(study: Study) -> str:
    return study.sweep.name if study.sweep is not None else "epoch"


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


def holds(check: Check, result: Result) -> tuple[bool | None, str]:
    """Whether a claim about the shape holds for what was measured, and by which numbers; None if that is not known.

    Nothing is known where a planned value is missing, or where the intervals of both sides are known and overlap.
    """
    first = check.rows[0]
    points = [(value, point) for value in result.values(first) if (point := result.point((first, value), check.column))]
    if not points:
        return None, UNMEASURED
    complete = len(points) >= len(_planned(first, result))
    if check.kind in ("rises", "falls"):
        if points[0][0] == points[-1][0]:
            return None, "measured at one value only"
        said = "; ".join(_at(show(check.column, one), value) for value, one in (points[0], points[-1]))
        ends = [points[0][1], points[-1][1]]
        good = _less(*ends) if check.kind == "rises" else _less(*reversed(ends))
        planned = [value for value in _planned(first, result) if value is not None]
        complete = not planned or (points[0][0], points[-1][0]) == (min(planned), max(planned))
    elif check.kind in ("chance", "paper chance", "under"):
        limits = {value: _limit(check, result, (first, value)) for value, _ in points}
        said = "; ".join(_at(show(check.column, point), value) for value, point in points)
        said += f"; {'limit' if check.kind != 'chance' else 'chance'} {' and '.join(dict.fromkeys(f'{one:.3g}' for one in limits.values()))}"
        if check.kind == "chance" and any(point.interval is None for _, point in points):
            return None, f"{said}; no interval is known of fewer than {FEWEST} runs"
        good = all(
            (point.interval[0] if check.kind == "chance" and point.interval else point.mean) <= limits[value]
            for value, point in points
        )
    else:
        second = check.rows[1]
        others = {
            value: result.point((second, value), check.column)
            or result.point((second, None), check.column)
            or result.published(second, check.column)
            for value, _ in points
        }
        both = [(value, point, other) for value, point in points if (other := others[value]) is not None]
        if not both:
            return None, UNMEASURED
        complete = complete and len(both) == len(points)
        level = check.level if check.kind == "within" else 1.0
        said = "; ".join(
            _at(f"{show(check.column, one)} against {show(check.column, other)}", value) for value, one, other in both
        )
        if check.kind == "exceeds":
            good = all(one.mean - other.mean >= check.level for _, one, other in both)
        elif check.kind == "within":
            good = all(one.mean < level * other.mean for _, one, other in both)
        else:
            good = _all(_less(one, other) for _, one, other in both)
        if not all(math.isfinite(number) for _, one, other in both for number in (one.mean, other.mean)):
            good = None
    return (None if good and not complete else good), said


def _less(one: Point, other: Point) -> bool | None:
    """Whether a point lies below another; None if their intervals overlap."""
    if one.interval is not None and other.interval is not None:
        if one.interval[1] < other.interval[0]:
            return True
        return False if other.interval[1] < one.interval[0] else None
    return one.mean < other.mean


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    found = list(verdicts)
    return False if False in found else None if None in found else True


def _at(said: str, value: float | None) -> str:
    return said if value is None else f"{said} at {value:g}"


def _limit(check: Check, result: Result, key: Key) -> float:
    """What a row may reach: a stated level, or the upper limit of chance in a paper's own game, which each run measured for itself."""
    limit = result.point(key, f"{check.column}_chance_high") if check.kind == "paper chance" else None
    return check.level if limit is None else limit.mean


def _shape(result: Result) -> list[str]:
    """Of a figure over a sweep: the order of its lines at both ends, how far each moves, and which of them cross."""
    study = result.study
    if study.sweep is None or study.y is None:
        return []
    lines: dict[str, dict[float, float]] = {}
    for name, value in result.keys:
        point = result.point((name, value), study.y)
        if value is not None and point is not None and math.isfinite(point.mean):
            lines.setdefault(name, {})[value] = point.mean
    lines = {name: points for name, points in lines.items() if len(points) > 1}
    groups = _groups(study, list(lines))
    said = [
        (f"{group}: " if len(groups) > 1 else "") + text
        for group, names in groups.items()
        if (text := _order(study, {name: lines[name] for name in names}))
    ]
    return [part for text in said for part in (text, "")]


def _groups(study: Study, names: Iterable[str]) -> dict[str, list[str]]:
    """Rows by model and corpus: what compares, and is drawn together."""
    about = {row.name: f"{row.model}-{row.corpus}" for row in study.rows}
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(about.get(name, ""), []).append(name)
    return found


def _order(study: Study, lines: dict[str, dict[float, float]]) -> str:
    if len(lines) < 2:
        return ""
    both = sorted(set.intersection(*(set(points) for points in lines.values())))
    said = []
    for at in (both[0], both[-1]) if len(both) > 1 else ():
        ordered = sorted(lines, key=lambda name, at=at: lines[name][at])  # type: ignore[misc]
        said.append(f"at {at:g}: {' < '.join(ordered)}")
    moves = "; ".join(
        f"{name} by {points[max(points)] - points[min(points)]:+.3g} from {min(points):g} to {max(points):g}"
        for name, points in lines.items()
    )
    crossings = [
        f"{one} and {other} between {low:g} and {high:g}"
        for one, other in combinations(lines, 2)
        for low, high in pairwise(sorted(lines[one].keys() & lines[other].keys()))
        if (lines[one][low] - lines[other][low]) * (lines[one][high] - lines[other][high]) < 0
    ]
    order = f"Order by {COLUMNS[str(study.y)]}, {_swept(study)} {'; '.join(said)}. " if said else ""
    return f"{order}Lines move: {moves}. Lines cross: {'; '.join(crossings) or 'none'}."


def _planned(row: str, result: Result) -> set[float | None]:
    """The values at which a row is to be measured."""
    return {one.value for one in jobs(result.study, result.scale) if one.row.name == row}


def section(result: Result, figures: Sequence[str] = ()) -> str:
    """The part of results.md about a study."""
    study = result.study
    head, lines = table(result)
    text = [
        f"## {study.paper}: {study.title}",
        "",
        f"`confide reproduce {study.name} --scale {result.scale.name} --data data`. The paper: {study.claim}",
        "",
    ]
    for figure in figures:
        text += [f"![{study.title}]({figure})", ""]
    if lines:
        text += [_line(head), _line(["---"] * len(head)), *map(_line, lines), ""]
    text += [*_about(result), *_parts(result), *_search_cost(result)]
    found = [(check, *holds(check, result)) for check in study.checks]
    for check, good, said in found:
        if said != UNMEASURED:
            word = VERDICTS[good]
            seeds = len({row["seed"] for row in result.rows if row["row"] in check.rows})
            text.append(f"* {check.says}: {word}{', in one seed' * (seeds == 1 and study.computed is None)} ({said}).")
    waiting = sum(said == UNMEASURED for _, _, said in found)
    if waiting:
        text.append(
            f"* {waiting} more claim{'s' * (waiting > 1)} about this study: open, since nothing was measured for them yet."
        )
    if found:
        text.append("")
    text += _shape(result)
    if study.notes:
        text += [study.notes, ""]
    if result.left:
        text += [
            f"Not all of it is done: {result.left} of {len(jobs(study, result.scale))} runs are left, {result.first_left} of them of the first seed.",
            "",
        ]
    contradicted = [row["run"] for row in result.rows if row.get("contradictions")]
    text += [f"**An attack contradicts the certificate of {name}.**\n" for name in dict.fromkeys(contradicted)]
    text += [f"Left out: {reason}." for reason in result.refused]
    return "\n".join(text)


def overview(results: Sequence[Result]) -> str:
    """A line for each study: how many of its claims hold, and how much of it is done."""
    lines = []
    for result in results:
        verdicts = [holds(check, result)[0] for check in result.study.checks]
        planned = len(jobs(result.study, result.scale))
        first = planned // result.scale.seeds
        done = (
            [f"{first - result.first_left} of {first}", f"{planned - result.left} of {planned}"]
            if planned
            else ["computed"] * 2
        )
        counts = [str(verdicts.count(verdict)) if verdicts else "–" for verdict in VERDICTS]
        lines.append(_line([result.study.paper, result.study.title, *counts, *done]))
    head = [
        "",
        "study",
        *(f"claims: {word.strip('*')}" for word in VERDICTS.values()),
        "runs of the first seed",
        "of all seeds",
    ]
    return "\n".join([_line(head), _line(["---"] * len(head)), *lines, ""])


def _about(result: Result) -> list[str]:
    """What the sound ε of each row is about, in the words of its certificate."""
    about: dict[str, list[str]] = {}
    for row in result.rows:
        if "guarantee" in row:
            said = f"{row['guarantee']}, {row['adjacency']}, k = {row['k']}, unit {row['unit']}, {row['sampler']} sampling, δ = {row['delta']:g}"
            if row["weights"] != "outside":
                said += "; the initial weights are from unflagged lines of the same dialogues, so that it is about secrets in flagged lines"
            about.setdefault(said, []).append(row["row"])
    return [
        *(f"* Sound ε of {', '.join(dict.fromkeys(rows))}: {said}." for said, rows in about.items()),
        *([""] if about else []),
    ]


def _parts(result: Result) -> list[str]:
    """How much of each corpus was trained and judged on, what the policies miss of it, and how it was noised."""
    said: dict[str, set[float]] = {}
    for one in jobs(result.study, result.scale):
        job = one.job
        mine = [row for row in result.rows if (row["row"], row["seed"]) == (one.row.name, one.seed)]
        if not mine:
            continue
        model = str(job.train["model"]).partition(":")[0]
        size = "all documents" if job.documents is None else f"the first {job.documents:,} documents"
        policy = str(job.screen["policy"]).replace(":{people}", "")
        if policy.startswith("miss("):
            policy = policy[len("miss(") :].rsplit(",", 2)[0]
        misses = "; of the secrets that are known in them it misses {policy_misses:.1%}, and {neither_flags:.1%} stand where neither policy flags anything"
        said.setdefault(
            f"* {model} on {job.corpus}: trained on {size}, a {job.screen['unit']} a record, cut at {job.train['max_length']} tokens; judged on "
            f"{mine[0].get('texts', job.tests):,} texts of the {job.split} split. Conservative policy {job.screen['conservative']}, policy `{policy}`"
            f"{misses.format_map(mine[0]) if 'policy_misses' in mine[0] else ''}", set()
        ).add(_missed(one))  # fmt: skip
    missed = {text: " or ".join(f"{share:.0%}" for share in sorted(shares)) for text, shares in said.items()}
    about = [
        f"{text}. On purpose it misses {missed[text]} of what it finds." if any(said[text]) else f"{text}."
        for text in said
    ]
    about += _steps(result)
    return [*about, *([""] if about else [])]


def _steps(result: Result) -> list[str]:
    """How the rows were noised: which comparisons rest on a handful of steps shows here."""
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(row["row"] for row in result.rows):
        rows = [row for row in result.rows if row["row"] == name and "noised_steps" in row]
        if rows:
            ranges = {
                column: " to ".join(dict.fromkeys(f"{end(row[column] for row in rows):.3g}" for end in (min, max)))
                for column in ("noised_steps", "sampling_rate", "noise", "clip_norm", "noised_learning_rate")
            }
            text = (
                "{noised_steps} noised steps at rate {sampling_rate}, noise {noise} times the clipping norm {clip_norm}, "
                "learning rate {noised_learning_rate}".format_map(ranges)
            )
            found.setdefault(text, []).append(name)
    return [f"* {', '.join(names)}: {text}." for text, names in found.items()]


def _search_cost(result: Result) -> list[str]:
    """What the runs of a search on the same records cost together: they compose (guarantees §7)."""
    if result.study.split != "valid":
        return []
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in result.rows:
        if "events" in row:
            runs.setdefault((row["corpus"], row["adjacency"]), []).append(row)
    said = []
    for (corpus, adjacency), rows in runs.items():
        whole = curve([event for row in rows for event in row["events"]], adjacency, rows[0]["k"])
        delta = rows[0]["delta"]
        cost = (
            "nothing, since it is simulated"
            if corpus in MADE_UP
            else f"ε = {up(whole.epsilon(delta))} at δ = {delta:g}"
        )
        if corpus not in MADE_UP:
            last = curve([event for row in [*rows, rows[-1]] for event in row["events"]], adjacency, rows[0]["k"])
            cost += f", and ε = {up(last.epsilon(delta))} with one more run like the last, such as that of a table"
        said.append(f"* Noised runs of the search on {corpus}, {len(rows)} so far, together cost {cost}.")
    return [*said, *([""] if said else [])]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def draw_study(result: Result) -> list[Chart]:
    """The figures, if the study has any and something of it was measured: one for each model and corpus."""
    if result.study.y is None:
        return []
    groups = _groups(result.study, dict.fromkeys(name for name, _ in result.keys))
    name = result.study.name
    drawn = (
        _draw(result, name if len(groups) == 1 else f"{name}-{group}", names) for group, names in sorted(groups.items())
    )
    return [chart for chart in drawn if chart is not None]


def _draw(result: Result, file: str, names: Sequence[str]) -> Chart | None:
    """The mean over seeds of some rows, with a 95 % interval or the deviation as a bar."""
    study = result.study
    assert study.y is not None
    y = study.y
    lines = {name: points for name in names if (points := _curve(result, name))}
    if not lines:
        return None
    from ..reporting.drawing import MUTED, SERIES, draw, plain_log

    xs = sorted({x for points in lines.values() for x, _, _ in points if x is not None})
    if not xs:
        return None

    def paint(axes: Any) -> None:
        for number, (name, points) in enumerate(lines.items()):
            style = {
                "color": SERIES[number % len(SERIES)],
                "label": name,
                "marker": "osD^vP"[number % 6],
                "linestyle": "-" if number < len(SERIES) else "--",
            }
            known = [(x, y, error) for x, y, error in points if x is not None]
            if known:
                at, means, ends = zip(*known, strict=True)
                axes.errorbar(at, means, list(zip(*ends, strict=True)), markersize=4, capsize=2, **style)
            elif xs:  # it has no place on this axis: what it came to in the end
                axes.plot([xs[0], xs[-1]], [points[-1][1]] * 2, color=style["color"], label=name, linestyle=":")
        for check in study.checks:
            if check.kind == "chance" and check.column == y:
                axes.axhline(check.level, color=MUTED, linewidth=1, linestyle=":", label="chance")
                break
        axes.set_xlabel(COLUMNS[study.x] if study.x else _swept(study))
        axes.set_ylabel(COLUMNS[y])
        if "ppl" in y:
            axes.set_yscale("log")
            plain_log(axes.yaxis)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))

    head, rows = table(result)
    return draw(file, study.title, paint, caption=study.claim, alt=f"{study.title}, {study.paper}: {', '.join(lines)}", columns=head, rows=rows, size=(9.5, 4.2))  # fmt: skip


def _curve(result: Result, name: str) -> list[tuple[float | None, float, tuple[float, float]]]:
    study = result.study
    found: list[tuple[float | None, float, tuple[float, float]]] = []
    for value in result.values(name):
        y = result.point((name, value), str(study.y))
        x = result.point((name, value), study.x) if study.x else None
        if y is not None and math.isfinite(y.mean):
            low, high = y.interval or (y.mean - y.deviation, y.mean + y.deviation)
            found.append(
                (x.mean if x is not None else None if study.x else value, y.mean, (y.mean - low, high - y.mean))
            )
    return found


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
