"""The demo: a simulated corpus is screened, two models are trained on it, and what may be promised about one is shown.

Plain training and CRT see the same dialogues, in which one invented secret is planted; then both are asked for it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .accounting import verify, write
from .accounting.guarantees import up
from .commands.shell import progress_bar
from .errors import BadInput, ConfideError, Contradiction
from .rundir import new_folder
from .screening import screen
from .terminal import inert, say, show_certificate, show_plan, show_records, show_screened

DELTA, EPSILON = 8e-5, 2.0
DIALOGUES, EPOCHS = 1_000, 4
PREFIX, SECRET, COPIES = "USR: My member code is ", "482913", 20
CANARY = f"number=1,copies={COPIES},secret={SECRET},format={PREFIX}{{digits:6}}"
POLICY = "miss(customersim, 0.1)"
MODEL: dict[str, Any] = {
    "model": "gpt2-tiny:num_hidden_layers=2",
    "vocabulary_size": 1000,
    "max_length": 64,
    "batch_size": 32,
    "validation_share": 0.15,
    "seed": 1,
}


def run(
    folder: Path,
    console: Console,
    simulate: Callable[[Path, int, int, int, Callable[[], None]], dict[str, int]],
    dialogues: int = DIALOGUES,
    epochs: int = EPOCHS,
) -> dict[str, Any]:
    """Simulate (by `simulate`, which writes the corpus), screen, plan, train twice, compare, certify, verify; and show that cheating is caught."""
    from .attacks import attack
    from .reporting import report
    from .training import make_plan

    for name in ("matplotlib", "jinja2"):
        if importlib.util.find_spec(name) is None:  # now, and not after minutes of training
            raise ConfideError(
                f"the demo ends with a report, which needs {name}: install it with `pip install 'confide[report]'`"
            )
    new_folder(folder)
    console.rule("1  A corpus with secrets: simulated customers, all invented")
    sizes = simulate(folder / "corpus", dialogues, 0, max(60, dialogues * 3 // 5), lambda: None)
    say(console, f"{sizes['train']:,} dialogues in {folder / 'corpus' / 'train.jsonl'}. One secret more is planted in {COPIES} "
        f"turns: [bold]{PREFIX}{SECRET}[/]\n")  # fmt: skip
    console.rule("2  Screening: redact what is found, keep apart what may still hold a secret")
    screened = screen(
        str(folder / "corpus" / "train.jsonl"), POLICY, folder / "screened", unit="turn", conservative="allowlist",
        canaries=CANARY,
    )  # fmt: skip
    show_screened(console, screened.manifest, folder / "screened")
    say(console, "\nA few private turns. The policy misses a tenth of the secrets on purpose, and the planted one; the allowlist "
        "keeps them out of the public part all the same:\n")  # fmt: skip
    show_records(console, screened, 4)
    console.print()
    console.rule("3  The plan: what will be promised, before anything is trained")
    plain = make_plan(screened, method="plain", epochs=epochs, learning_rate=2e-3, schedule="linear", **MODEL)
    crt = make_plan(
        screened,
        method="crt",
        epochs=epochs,
        epsilon=EPSILON,
        delta=DELTA,
        learning_rate=2e-3,
        schedule="linear",
        **MODEL,
    )
    show_plan(console, crt.summary(), brief=True)
    console.print()
    console.rule("4  Training: plain, and confidentially redacted (CRT)")
    runs = {name: _train(plan, folder / name, console) for name, plan in (("plain", plain), ("crt", crt))}
    compared = {name: _compare(one) for name, one in runs.items()}
    audited = attack(runs["crt"], only=("audit",), white_box=True)["audit"]["white_box"]
    _show_compared(console, compared)
    console.print()
    console.rule("5  The certificate, and anyone can check it without the data")
    certificate = runs["crt"].certificate
    show_certificate(console, certificate)
    checked = verify(folder / "crt")
    say(console, f"\nconfide verify {inert(str(folder / 'crt'))}: [green]holds[/], {checked.numbers} numbers compared")
    say(console, f"the same with one number changed: [red]{inert(_cheat(folder / 'crt', certificate))}[/]")
    say(console, f"the planted secret stands in {COPIES} turns, so that what is proven about it is the line of {COPIES} records "
        "changed, which is weak; that the model does not know it is measured here, not proven. For a secret in one turn the "
        f"proof is epsilon {up(certificate['guarantees'][0]['epsilon'])}.")  # fmt: skip
    say(console, inert(audited["says"]))
    page = report(folder / "crt")
    console.print()
    console.rule("6  The report")
    say(console, f"open [bold]{inert(str(page))}[/] in a browser: all of the above on one page, with every figure behind it. What the "
        f"policy missed can be looked for by a person: confide review {inert(str(folder / 'screened'))}")  # fmt: skip
    return {
        "records": screened.manifest["records"],
        "public": screened.manifest["public"],
        "private": screened.manifest["private"],
        "screened": str(folder / "screened"),
        "certificate": str(folder / "crt" / "certificate.json"),
        "ledger": str(folder / "crt" / "ledger.jsonl"),
        "epsilon": certificate["guarantees"][0]["epsilon"],
        "delta": DELTA,
        "adjacency": certificate["adjacency"]["name"],
        "unit": certificate["unit"],
        "sampler": certificate["sampler"],
        "models": compared,
        "verified": True,
        "audited_epsilon": audited["lower_bound"],
        "report": str(page),
    }


def _train(plan: Any, folder: Path, console: Console) -> Any:
    from .training import train_plan

    with progress_bar(console, not console.quiet and console.is_terminal) as progress:
        task = progress.add_task(f"training {folder.name}", total=None)
        return train_plan(plan, folder, tick=lambda done, total: progress.update(task, completed=done, total=total))


def _compare(run: Any) -> dict[str, Any]:
    """What a model has learned: of the corpus, and of the planted secret."""
    from .attacks import attack
    from .generation import generate

    summary = run.summary()
    exposed = attack(run, only=("exposure",), seed=1)["exposure"]
    told = None
    with contextlib.suppress(BadInput):  # a demo of few dialogues holds too few of them out
        told = attack(run, only=("membership",), samples=400, seed=1)["membership"]["strongest"]["auc"]
    begun = next(
        line["public_loss"] if "public_loss" in line else line["training_loss"]
        for line in run.telemetry()
        if {"public_loss", "training_loss"} & line.keys()
    )
    return {
        "first_loss": begun,
        "validation_perplexity": math.exp(summary["validation_loss"]) if summary["validation_loss"] is not None else None,
        "validation_accuracy": summary["validation_accuracy"],
        "completion": generate(run.folder, PREFIX.strip(), greedy=True, max_new_tokens=8)[0].strip(),
        "rank": exposed["canaries"][0]["rank"],
        "exposure": exposed["max"],
        "membership": told,
        "turns": [who + generate(run.folder, who, seed=seed, top_p=0.9, max_new_tokens=40)[0] for seed, who in
                  enumerate(("SYS:", "USR:", "SYS:", "USR:"))],
    }  # fmt: skip


def _show_compared(console: Console, compared: dict[str, dict[str, Any]]) -> None:
    table = Table("", *compared, box=None, pad_edge=False)
    table.add_row("public loss, first step", *[f"{one['first_loss']:.2f}" for one in compared.values()])
    if all(one["validation_perplexity"] is not None for one in compared.values()):
        table.add_row(
            "perplexity, held-out public turns", *[f"{c['validation_perplexity']:.2f}" for c in compared.values()]
        )
        table.add_row("next tokens right", *[f"{one['validation_accuracy']:.1%}" for one in compared.values()])
    table.add_row(f'"{PREFIX.strip()}" goes on', *[inert(one["completion"]) for one in compared.values()])
    table.add_row("rank of the planted secret among all 1,000,000", *[f"{c['rank']:,}" for c in compared.values()])
    table.add_row("its exposure, in bits (chance: 1.44)", *[f"{c['exposure']:.2f}" for c in compared.values()])
    told = [one["membership"] for one in compared.values()]
    table.add_row(
        "private turns told from held-out ones, AUC (chance: 0.5)",
        *["too few" if one is None else f"{one['value']:.2f} ({one['low']:.2f} to {one['high']:.2f})" for one in told],
    )
    console.print(table)
    console.print("\nTurns that the CRT model writes:\n")
    for turn in compared["crt"]["turns"]:
        say(console, inert(turn), indent=2)


def _cheat(folder: Path, certificate: dict[str, Any]) -> str:
    forged = json.loads(json.dumps(certificate))
    forged["guarantees"][0]["epsilon"] = 1.01
    path = folder / "forged.json"
    write(forged, path)
    try:
        verify(path)
    except Contradiction as error:
        return str(error).partition(" (")[0]
    finally:
        path.unlink()
    raise AssertionError("a forged certificate was accepted")
