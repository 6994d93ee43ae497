"""The demo: a simulated corpus is screened, and what may be promised about it is worked out and verified.

No model is trained here: the ledger is one that a run on the screened records would write.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from .accounting import LedgerWriter, PoissonGaussian, Redraws, curve, issue, read_ledger, verify, write
from .accounting.guarantees import up
from .errors import Contradiction
from .experiments.customersim import write_corpus
from .rundir import new_folder
from .screening import screen
from .terminal import chart, say, show_certificate, show_missed, show_records, show_screened

DELTA = 8e-5
STEP = PoissonGaussian(sampling_rate=1 / 32, noise_multiplier=2.0, count=320)
EVIDENCE = Redraws(labels=200, missed=20)
SUBJECT = "worked example: 320 private steps of CRT on the private part of a simulated corpus; no model was trained"
DIALOGUES, PEOPLE = 1_000, 600


def run(folder: Path, console: Console, tick: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Simulate and screen a corpus, write a ledger and its certificate, verify it, and show that cheating is caught."""
    new_folder(folder)
    console.rule("1  A corpus with secrets: simulated customers, all invented")
    sizes = write_corpus(folder / "corpus", DIALOGUES, 0, PEOPLE, tick)
    console.print(f"{sizes['train']:,} dialogues in {folder / 'corpus' / 'train.jsonl'}\n", highlight=False)
    console.rule("2  Screening: redact what is found, keep apart what may still hold a secret")
    screened = screen(
        str(folder / "corpus" / "train.jsonl"), "patterns", folder / "screened", unit="turn", conservative="allowlist"
    )
    show_screened(console, screened.manifest, folder / "screened")
    console.print(
        "\nA few private turns; the policy `patterns` does not know names, so that turns with a name stay private:\n"
    )
    show_records(console, screened, 4)
    show_missed(console, screened, 2)
    setting = screened.setting(method="crt", clipping_norm=1.0, subject=SUBJECT)
    ledger_path, certificate_path = folder / "ledger.jsonl", folder / "certificate.json"
    with LedgerWriter.create(ledger_path, setting.to_plain(), [("train", STEP)]) as writer:
        for _ in range(STEP.count // 8):
            writer.append(PoissonGaussian(STEP.sampling_rate, STEP.noise_multiplier, 8))
    ledger = read_ledger(ledger_path)
    console.print()
    console.rule("3  The ledger: budget is written down before it is spent")
    say(console, "[bold]No model is trained here.[/] The ledger is the one that 320 private steps on the private turns would write; "
        "suppose that of 200 labelled secrets the policy missed 20.\n")  # fmt: skip
    console.print(
        f"{ledger.length} hash-chained lines in {ledger_path}: {STEP.count} steps, each record with probability 1/32, "
        f"noise {STEP.noise_multiplier:g} times the clipping norm\n",
        highlight=False,
    )
    certificate = issue(ledger, DELTA, EVIDENCE)
    write(certificate, certificate_path)
    console.rule("4  The certificate: what may be promised")
    show_certificate(console, certificate)
    console.print()
    console.rule("5  The curve behind it: delta against epsilon (substitution, k=1)")
    sound, naive = curve([STEP]), curve([STEP], "add-remove")
    epsilons = np.linspace(0, sound.epsilon(1e-8), 61)
    console.print(chart(epsilons.tolist(), sound.deltas(epsilons).tolist(), "epsilon", "delta"), highlight=False)
    claimed = naive.epsilon(DELTA)
    console.print(
        f"\nAccounting for a removed record instead of a masked secret would claim epsilon {up(claimed)}; at that epsilon "
        f"the true delta is {sound.delta(claimed):.2g}, not {DELTA:g}.\n",
        highlight=False,
    )
    console.rule("6  Anyone can check it without the data")
    checked = verify(folder)
    say(console, f"confide verify {escape(str(folder))}: [green]holds[/], {checked.numbers} numbers compared")
    refusal = escape(_cheat(folder, certificate))
    say(console, f"the same with one number changed: [red]{refusal}[/]")
    console.print(f"\nThe certificate is in {certificate_path}", highlight=False)
    secret = next(g for g in certificate["guarantees"] if g["name"] == "per-secret")
    return {
        "records": screened.manifest["records"],
        "public": screened.manifest["public"],
        "private": screened.manifest["private"],
        "screened": str(folder / "screened"),
        "certificate": str(certificate_path),
        "ledger": str(ledger_path),
        "epsilon": secret["epsilon"],
        "delta": DELTA,
        "adjacency": certificate["adjacency"]["name"],
        "unit": certificate["unit"],
        "sampler": certificate["sampler"],
        "verified": True,
    }


def _cheat(folder: Path, certificate: dict[str, Any]) -> str:
    forged = json.loads(json.dumps(certificate))
    forged["guarantees"][0]["epsilon"] = 1.01
    path = folder / "forged.json"
    write(forged, path)
    try:
        verify(path)
    except Contradiction as error:
        return str(error)
    finally:
        path.unlink()
    raise AssertionError("a forged certificate was accepted")
