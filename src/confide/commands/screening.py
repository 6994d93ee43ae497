"""`screen`, `review`, `policies` and `canaries`: from a corpus to its public and private part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from ..errors import BadInput
from .shell import HelpAll, Json, command, echo, reply


@command()
def screen(
    corpus: Annotated[
        list[str],
        typer.Argument(metavar="CORPUS...", help="Files, folders, globs or URIs: JSONL, CSV, Parquet, text, …"),
    ],
    policy: Annotated[
        str, typer.Option(help="What is redacted: pii, patterns, known:FILE, … (see `confide policies`).")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the public and the private part.")] = Path(
        "screened"
    ),
    conservative: Annotated[
        str, typer.Option(help="What makes a record private besides: everything, allowlist, or another policy.")
    ] = "everything",
    unit: Annotated[str, typer.Option(help="A record is a document, a turn or a sentence.")] = "document",
    max_words: Annotated[int | None, typer.Option(help="Cut longer records, at sentence ends only.")] = None,
    context: Annotated[
        str,
        typer.Option(
            hidden=True,
            help="record, or group: policies read whole documents, which become public or private as a whole.",
        ),
    ] = "record",
    dedup: Annotated[
        str | None,
        typer.Option(
            help="In the private part: off, exact, bloom or bloom-verified (default: exact for documents, else off)."
        ),
    ] = None,
    max_copies: Annotated[int, typer.Option(hidden=True, help="Copies of a private record that dedup leaves.")] = 1,
    dedup_unit: Annotated[
        str | None, typer.Option(hidden=True, help="Compare turns or sentences inside larger records.")
    ] = None,
    order: Annotated[
        str, typer.Option(hidden=True, help="redact-dedup, or the CRT paper's dedup-redact (a weaker certificate).")
    ] = "redact-dedup",
    public_dedup: Annotated[str, typer.Option(hidden=True, help="In the public part: off, exact or near.")] = "off",
    bloom_delta: Annotated[float, typer.Option(hidden=True, help="What a Bloom filter may cost of delta.")] = 1e-9,
    canaries: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Plant invented secrets: crt, sdp, jft, audit, or audit,number=200,…"),
    ] = None,
    text_field: Annotated[str | None, typer.Option(help="The column of the text (or of chat messages).")] = None,
    id_field: Annotated[str | None, typer.Option(hidden=True, help="The column of the ids.")] = None,
    group_field: Annotated[str | None, typer.Option(help="The column that names the dialogue or person.")] = None,
    label_field: Annotated[
        str | None, typer.Option(hidden=True, help="The column of the class, for training a classifier.")
    ] = None,
    text_as: Annotated[str, typer.Option(help="What a document is in a text file: file, line or paragraph.")] = "file",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Count rows that cannot be used, and go on.")] = False,
    workers: Annotated[int | None, typer.Option(help="Processes on this machine (default: one a core).")] = None,
    cluster: Annotated[
        str | None, typer.Option(hidden=True, metavar="auto|ray://HOST", help="Run on a Ray cluster.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a screening that was interrupted.")] = False,
    show: Annotated[int, typer.Option(help="Print this many private records, raw beside screened. SENSITIVE.")] = 0,
    as_json: Json = False,
    help_all: HelpAll = False,
) -> None:
    """Split a corpus into records, redact what a policy finds, and part public from private records.

    Example:

    confide screen chats --policy patterns --unit turn --conservative allowlist
    """
    from ..accounting.events import check_count
    from ..records import Fields
    from ..screening import Options, corpus_size
    from ..screening import screen as run
    from ..sources import sources

    if workers is not None:
        check_count("--workers", workers, high=1024)
    check_count("--show", show, low=0)
    options = Options(
        policy=policy,
        conservative=conservative,
        unit=unit,
        max_words=max_words,
        context=context,
        dedup=dedup,
        max_copies=max_copies,
        order=order,
        dedup_unit=dedup_unit,
        public_dedup=public_dedup,
        bloom_delta=bloom_delta,
        canaries=canaries,
        fields=Fields(text_field, id_field, group_field, label_field),
        text_as=text_as,
        skip_bad=skip_bad,
    )
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("screening", total=corpus_size(sources(corpus)) or None)
        screened = run(
            corpus, out=out, options=options, workers=workers, cluster=cluster, resume=resume,
            tick=lambda size: progress.advance(task, size),
        )  # fmt: skip
    if as_json:
        reply({**screened.manifest, "folder": str(out)})
        return
    from ..terminal import show_records, show_screened

    show_screened(Console(), screened.manifest, out)
    if show:
        show_records(Console(), screened, show)


@command()
def review(
    folder: Annotated[Path, typer.Argument(help="A folder that `confide screen` has written.")],
    sample: Annotated[int | None, typer.Option(help="Records to draw; more can be drawn later.")] = None,
    reviewer: Annotated[str, typer.Option(help="Who reviews; several may.")] = "reviewer",
    cap: Annotated[
        int | None, typer.Option(help="Secrets of a record that count at most; fixed with the first start.")
    ] = None,
    confidence: Annotated[float | None, typer.Option(help="Of the bounds; fixed with the first start. [0.95]")] = None,
    port: Annotated[int | None, typer.Option(help="On 127.0.0.1. [8765, or any that is free]")] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    export: Annotated[
        Path | None, typer.Option(help="Write the reviewed records for --screened-by-hand, and stop.")
    ] = None,
    mask_rest: Annotated[
        bool, typer.Option("--mask-rest", help="With --export: records without an answer as a mask alone.")
    ] = False,
    as_json: Json = False,
) -> None:
    """A page on this machine on which a person marks what the policy missed; the bound it gives goes to `confide train --review`.

    Example:

    confide review screened
    """
    from ..review import export as write
    from ..review import open_store, serve

    if mask_rest and export is None:
        raise BadInput("--mask-rest goes with --export FILE")
    if export is not None:
        found = write(
            open_store(folder, sample=sample, reviewer=reviewer, cap=cap, confidence=confidence), export, mask_rest
        )
    else:
        found = serve(
            folder, sample=sample, port=port, reviewer=reviewer, cap=cap, confidence=confidence, open_browser=browser,
            say=lambda text: echo(text, err=True),
        )  # fmt: skip
    if as_json:
        reply(found)
    elif export is not None:
        echo(f"{found['records']:,} records in {export} (SENSITIVE until you have looked at it)")
    elif (folder / "review.json").exists():
        echo(
            f"in {folder / 'review.json'}; `confide train --review {folder / 'review.json'}` puts its bound into the certificate"
        )
    else:
        echo("nothing was answered, so that there is no review.json yet")


@command()
def policies(as_json: Json = False) -> None:
    """The policies that can be named, and what each needs.

    Example:

    confide policies
    """
    from ..policies import COMPOSED, known_policies

    found = [
        {"name": e.name, "argument": e.argument, "summary": e.summary, "needs": e.needs}
        for e in known_policies().values()
    ]
    if as_json:
        reply({"policies": found, "composed": COMPOSED})
        return
    from ..terminal import show_policies

    show_policies(Console(), found, COMPOSED)


@command()
def canaries(
    spec: Annotated[str, typer.Argument(help="crt, sdp, jft, audit, or audit,number=200,copies=2,format=…")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder.")] = Path("canaries"),
    as_json: Json = False,
) -> None:
    """Invented secrets to plant in a corpus that another program trains on, for `confide attack --model DIR --canaries FOLDER`.

    Example:

    confide canaries audit,number=200 -o canaries
    """
    from ..screening.canaries import write_canaries

    found = write_canaries(spec, out)
    if as_json:
        reply(found)
    else:
        echo(
            f"{found['texts']:,} texts to train on in {found['add']}; what was planted, and how the coins fell, is beside it"
        )
