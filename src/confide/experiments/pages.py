"""The words of results.md: a study's results in; its table, what it rests on, its claims and what is left of it out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ..accounting import curve
from ..accounting.guarantees import up
from .claims import UNMEASURED, VERDICTS, holds, shape
from .numbers import COLUMNS
from .results import Result, missed_on_purpose, show, swept
from .scales import SIMULATED, SMALL
from .study import OURS, Study, jobs

MADE_UP = (SIMULATED, SMALL)


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
    head = ["run", "what", *(f"{swept(study)} {value:g}" for value in values), "seeds"]
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


def section(result: Result, figures: Sequence[str] = (), like: Study | None = None) -> str:
    """The part of results.md about a study. `like`: an earlier one of the same runs, which says how they were made."""
    study = result.study
    head, lines = table(result)
    text = [
        f"## {_heading(study)}",
        "",
        f"`confide reproduce {study.name} --scale {result.scale.name} --data data`. The paper: {study.claim}",
        "",
    ]
    for figure in figures:
        text += [f"![{study.title}]({figure})", ""]
    if lines:
        text += [_line(head), _line(["---"] * len(head)), *map(_line, lines), ""]
    if like is None:
        text += [*_about(result), *_parts(result), *_search_cost(result)]
    else:
        text += [f"These are the runs of {like.paper}, where their ε, policies, noise and perplexities stand.", ""]
    found = [(check, *holds(check, result)) for check in study.checks]
    for check, good, said in found:
        if said != UNMEASURED:
            word = VERDICTS[good]
            seeds = len({row["seed"] for row in result.rows if row["row"] in check.rows})
            text.append(
                f"* {'Ours: ' if check.ours and study.paper != OURS else ''}{check.says}: {word}{', in one seed' * (seeds == 1 and study.computed is None)} ({said})."
            )
    waiting = sum(said == UNMEASURED for _, _, said in found)
    if waiting:
        text.append(
            f"* {waiting} more claim{'s' * (waiting > 1)} about this study: open, since nothing was measured for them yet."
        )
    if found:
        text.append("")
    text += shape(result)
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
        study = result.study
        planned = len(jobs(study, result.scale))
        first = planned // result.scale.seeds
        done = (
            [f"{first - result.first_left} of {first}", f"{planned - result.left} of {planned}"]
            if planned
            else ["computed"] * 2
        )
        counts = []
        for ours in (False, True):
            verdicts = [holds(check, result)[0] for check in study.checks if check.ours is ours]
            counts.append(" / ".join(str(verdicts.count(verdict)) for verdict in VERDICTS) if verdicts else "–")
        title = f"[{study.title}](#{_anchor(_heading(study))})" if result.rows or result.refused else study.title
        lines.append(_line([study.paper, title, *counts, *done]))
    words = " / ".join(word.strip("*") for word in VERDICTS.values())
    head = ["", "study", f"the paper's claims: {words}", "ours", "runs of the first seed", "of all seeds"]
    return "\n".join([_line(head), _line(["---"] * len(head)), *lines, ""])


def _heading(study: Study) -> str:
    return f"{study.paper}: {study.title}"


def _anchor(heading: str) -> str:
    """The link that Markdown pages give a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _about(result: Result) -> list[str]:
    """What the sound ε of each row is about, in the words of its certificate."""
    about: dict[str, list[str]] = {}
    for row in result.rows:
        if "guarantee" in row:
            said = f"{row['guarantee']} ({row['whose']}), {row['adjacency']}, k = {row['k']}, unit {row['unit']}, {row['sampler']} sampling, δ = {row['delta']:g}"
            if row["weights"] != "outside":
                said += "; the initial weights are from unflagged lines of the same dialogues"
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
        ).add(missed_on_purpose(one))  # fmt: skip
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
