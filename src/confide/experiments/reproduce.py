"""`confide reproduce`: the name of a study in; its runs done as far as they are not, its table, figure and paragraph out."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..accounting.events import check_count
from ..errors import BadInput
from . import crt, jft, ours, sdp
from .figures import draw_study
from .jobs import Bench, Job, make
from .pages import overview, section
from .results import Result, as_csv, collect, left_of
from .scales import MULTIWOZ, ORIGINAL, SCALES, SIMULATED, SMALL, Scale
from .study import Row, Study, jobs

STUDIES: dict[str, Study] = {study.name: study for part in (ours, crt, sdp, jft) for study in part.STUDIES}
Done = Callable[[Job], object]


def chosen(name: str) -> list[Study]:
    """The studies that a name stands for: one, those of a paper, or all."""
    if name == "all":
        return list(STUDIES.values())
    found = [
        study
        for study in STUDIES.values()
        if name in (study.name, study.name.partition("-")[0]) or study.paper.partition(",")[0].lower() == name
    ]
    if not found:
        raise BadInput(
            f"there is no study {name[:40]!r}; there are {', '.join(STUDIES)}, the papers crt, s-dp and jft, and all"
        )
    return found


def scale_of(name: str) -> Scale:
    if name not in SCALES:
        raise BadInput(f"--scale is one of {', '.join(SCALES)}, got {name[:40]!r}")
    return SCALES[name]


def command(
    name: str | None, *, scale: str, data: Path | None, out: Path, only: str | None = None, seeds: int | None = None, workers: int | None = None,
    reference: str | None = None, status: bool = False, page: Path | None = None, console: Console | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What `confide reproduce` does: do what is left of some studies, or say what is left of all; and write the page."""
    size = scale_of(scale)
    bench = Bench(out, data, None if page is None else _kept(page), reference, own_tokens=size.name == "smoke")
    named = {study.name for study in (STUDIES.values() if name is None else chosen(name))}
    studies = [study for study in _all(size, bench) if study.name in named]
    if workers is not None:
        check_count("--workers", workers, high=1000)
    if seeds is not None:
        check_count("--seeds", seeds, high=1000)
    fewer = replace(size, seeds=min(size.seeds, seeds or size.seeds))
    narrowed = [
        replace(one, rows=tuple(row for row in one.rows if only is None or only in row.name)) for one in studies
    ]
    if name is not None and not any(one.rows or one.computed for one in studies):
        raise BadInput(
            f"{name} needs texts that nobody can simulate here; name the folder of the data sets with --data"
        )
    if only is not None and not any(one.rows for one in narrowed):
        raise BadInput(f"no row of {name or 'any study'} holds {only[:40]!r} in its name; they are {_listed(studies)}")
    written = []
    if name is not None and not status:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)  # the corpora's text lies below it
        left = left_of(narrowed, fewer, bench)
        with _progress(console, left) as done:
            make_all(narrowed, fewer, bench, workers or os.cpu_count() or 1, done)
        written = [write(collect(study, size, bench), out / "results") for study in studies]
    found: dict[str, Any] = {
        "scale": size.name,
        "out": str(out),
        "studies": left_of(narrowed, fewer, bench),
        "written": written,
    }
    if page is not None:
        results = render(size, bench, page)
        found["page"] = {
            "file": str(page),
            "studies": [one.study.name for one in results],
            "left_out": [text for one in results for text in one.refused],
            "unused": sorted({one.name for one in _kept(page).glob("*-*")} - _planned(size, bench).keys()),
        }
    return found


def _simulated(study: Study) -> Study:
    """A study on simulated dialogues, to try it without any data; rows on text of another kind are left out."""
    return replace(
        study, rows=tuple(_small(row) for row in study.rows if row.corpus in (ORIGINAL, SIMULATED, SMALL, MULTIWOZ))
    )


def _small(row: Row) -> Row:
    screen = {
        name: str(value).replace(":{people}", "") if name == "policy" else value for name, value in row.screen.items()
    }
    return replace(row, corpus=SMALL, screen=screen)


def _listed(studies: Sequence[Study]) -> str:
    return "; ".join(dict.fromkeys(row.name for study in studies for row in study.rows))[:600]


@contextmanager
def _progress(console: Console | None, left: Sequence[dict[str, Any]]) -> Iterator[Done]:
    """A bar of the jobs, with the time left by what the finished ones took."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(
        *columns, console=console, disable=console is None or console.quiet or not console.is_terminal
    ) as progress:
        task = progress.add_task("runs", total=sum(one["left"] for one in left))

        def done(job: Job) -> None:
            progress.update(task, advance=1)
            if console is not None and not console.is_terminal:
                console.print(f"done: {job.name}")

        yield done


def make_all(
    studies: Sequence[Study], scale: Scale, bench: Bench, workers: int = 1, done: Done = lambda job: None
) -> None:
    """Do what is left of the studies."""
    wanted = {one.job.key: one.job for study in studies for one in jobs(study, scale)}
    # First seeds of all studies come before second ones: an interrupted sweep shows every line, if with less certainty
    order = sorted(
        (job for job in wanted.values() if bench.finished(job) is None), key=lambda job: int(job.train.get("seed", 0))
    )
    for job in _made(order, bench, min(workers, len(order))):
        done(job)


def _made(order: Sequence[Job], bench: Bench, workers: int) -> Iterable[Job]:
    """Do jobs, in processes of their own if there are several workers; each is named when it is done."""
    if workers <= 1:
        for job in order:
            make(job, bench)
            yield job
        return
    starts = {job.start.key: job.start for job in order if job.start is not None}
    waiting = [*starts.values(), *order]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_alone) as pool:
        running: dict[Future[Path], Job] = {}
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    job = waiting.pop(0)
                    running[pool.submit(make, job, bench)] = job
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    future.result()
                    yield job
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _alone() -> None:
    """One thread for each worker: small models gain nothing from more."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)


def write(result: Result, folder: Path, like: Study | None = None) -> dict[str, Any]:
    """A study's CSV file, its figure and its section, as files."""
    folder.mkdir(parents=True, exist_ok=True)
    name = result.study.name
    (folder / f"{name}.csv").write_text(as_csv(result), encoding="utf-8")
    drawn = draw_study(result)
    for chart in drawn:
        (folder / f"{chart.name}.svg").write_text(chart.svg, encoding="utf-8")
        (folder / f"{chart.name}.png").write_bytes(chart.png)
    text = section(result, [f"results/{chart.name}.svg" for chart in drawn], like)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    return {
        "study": name,
        "csv": str(folder / f"{name}.csv"),
        "section": str(folder / f"{name}.md"),
        "left": result.left,
    }


def render(scale: Scale, bench: Bench, page: Path) -> list[Result]:
    """results.md, and its figures, CSV files and what is kept of runs in a folder beside it: every study of which anything was measured."""
    if bench.data is None and scale.name != "smoke":
        raise BadInput("--page checks every run against its data; name their folder with --data")
    if not page.parent.is_dir():
        raise BadInput(f"--page: there is no folder {page.parent}")
    for job in _planned(scale, bench).values():
        bench.keep(job)
    results = [collect(study, scale, bench) for study in _all(scale, bench)]
    measured = [result for result in results if result.rows or result.refused]
    if not measured:
        raise BadInput(
            f"{bench.folder} holds no finished run of scale {scale.name}; start with `confide reproduce fig6`"
        )
    folder = page.with_suffix("")
    for name in STUDIES:  # what earlier pages showed and this one does not
        for file in [folder / f"{name}.csv", folder / f"{name}.svg", *folder.glob(f"{name}-*.svg")]:
            file.unlink(missing_ok=True)
    shown: list[Study] = []
    for result in measured:
        study = result.study
        like = next((one for one in shown if (one.rows, one.sweep, one.attack) == (study.rows, study.sweep, study.attack)), None)  # fmt: skip
        write(result, folder, like)
        shown.append(study)
    sections = [(folder / f"{result.study.name}.md").read_text(encoding="utf-8") for result in measured]
    for result in measured:
        (folder / f"{result.study.name}.md").unlink()
    for picture in folder.glob("*.png"):
        picture.unlink()
    page.write_text("\n".join([INTRODUCTION.format(scale=scale.name), overview(results), *sections]), encoding="utf-8")
    return measured


def _all(scale: Scale, bench: Bench) -> list[Study]:
    """All studies; on simulated dialogues where a trial has no data."""
    simulated = scale.name == "smoke" and bench.data is None
    return [_simulated(study) if simulated else study for study in STUDIES.values()]


def _planned(scale: Scale, bench: Bench) -> dict[str, Job]:
    return {one.job.name: one.job for study in _all(scale, bench) for one in jobs(study, scale)}


def _kept(page: Path) -> Path:
    """Where the runs that a page shows are kept, as far as the page needs them."""
    return page.with_suffix("") / "runs"


INTRODUCTION = """# Results: the papers' figures and tables, and ours

This page is written by `confide reproduce --scale {scale} --data data --page docs/results.md` from the folders of runs; no number on it is typed by
hand, but for what the papers published. A run counts only if it is the one that is described, was trained and judged on the data that lie there now, and has a certificate of its own that
verifies (baselines without noise have none, nor has S-DP's own algorithm where no bound is proven). The numbers of every single
run are in the CSV files of [results/](results), its ledger, certificate and measurements in [results/runs/](results/runs): `confide verify` takes
each folder with a certificate. The commands want the data sets in a folder `data` ([data.md](data.md)).

**Perplexity** (PPL) is exp(nats / number of GPT-2 tokens) of raw test text, whatever the model's own vocabulary, so that rows compare; "non-secret" and "secret" are tokens outside and
inside secrets, by ground truth. "Next tokens right" is of a model's own tokens, and does not compare with published accuracies. "Share redacted" is of characters.

**ε.** Every "sound ε" is the first finite guarantee of a run's certificate, all steps released; what it is about (whose secrets, adjacency, k, unit, sampler, δ)
stands below each table, and its assumptions in the certificate. It is that of one run: a search for options costs more, and says so.
"ε as the papers count" is an added or removed record, Rényi accounting with the old conversion: the number which S-DP would print, and no
bound; of few steps its conversion makes more than a sound ε. Beside "published" it is what that paper printed. "None finite" is said of noised runs of which no bound is proven. A Bayesian ε is about a secret of a kind that
the policy finds, but for an independent coin of the stated probability, and that the conservative policy flags wherever it stands.

**Attacks.** Exposure is in bits, of 10^6 candidates: an unseen canary averages 1.44, the largest of ten 4.23, of nine 4.08. "MIA, AUC" compares records that
were trained on with held-out ones, with a baseline that never sees the model beside it; "as CRT counts" and "as S-DP counts" are the papers' games, with their chance
levels beside them.

**Verdicts.** ± is the standard deviation over seeds. Brackets hold a 95 % interval: of three seeds Student's, of fewer that of the runs themselves, by the records they were judged on (of exposure as wide as that of
unseen canaries, which for exposed ones is too narrow). What has no interval, such as a perplexity of one seed, is taken as known to 2.5 %, which is a convention and not a measurement. A claim holds, or does not, only where what both sides may be
lies apart; else it is open. "At chance" holds where an interval reaches down to chance and ends near it, as stated. A claim of a paper is one that its own numbers or words make; those that we add are counted apart.

**Data.** MultiWOZ is the validation and test part of 2.1, all that could be had.
CustomerSim's own policy is the labeller that the ground truth comes from, so that it finds every secret of its kinds, unless it is
made to miss a share of them.
"""
