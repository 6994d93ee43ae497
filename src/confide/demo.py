"""The demo: a worked certificate in the terminal, from a ledger to a verification and an attempt to cheat.

No model is trained here: the ledger is one that a run with these settings would write.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from .accounting import LedgerWriter, PoissonGaussian, Redraws, Setting, curve, issue, read_ledger, verify, write
from .accounting.guarantees import up
from .errors import Contradiction
from .rundir import new_folder
from .terminal import chart, say, show_certificate

DELTA = 8e-5
STEP = PoissonGaussian(sampling_rate=1 / 32, noise_multiplier=2.0, count=320)
EVIDENCE = Redraws(labels=200, missed=20)
SUBJECT = "worked example: 320 private steps of CRT on 32,000 records; no model was trained"


def run(folder: Path, console: Console) -> dict[str, Any]:
    """Write a ledger and its certificate into a folder, verify it, and show that a changed number is caught."""
    new_folder(folder)
    setting = Setting(
        method="crt",
        unit="turn",
        policy="patterns",
        conservative="allowlist",
        recall_class="secrets that hold a digit or a word outside the public word list",
        mask_consistent=True,
        private_records=32_000,
        clipping_norm=1.0,
        subject=SUBJECT,
    )
    ledger_path, certificate_path = folder / "ledger.jsonl", folder / "certificate.json"
    with LedgerWriter.create(ledger_path, setting.to_plain(), [("train", STEP)]) as writer:
        for _ in range(STEP.count // 8):
            writer.append(PoissonGaussian(STEP.sampling_rate, STEP.noise_multiplier, 8))
    ledger = read_ledger(ledger_path)
    say(console, "[bold]A worked example: no model is trained here.[/] The ledger is the one that 320 private steps on 32,000 "
        "records would write; of 200 labelled secrets the policy missed 20.\n")  # fmt: skip
    console.rule("1  The ledger: budget is written down before it is spent")
    console.print(
        f"{ledger.length} hash-chained lines in {ledger_path}: {STEP.count} steps, each record with probability 1/32, "
        f"noise {STEP.noise_multiplier:g} times the clipping norm\n",
        highlight=False,
    )
    certificate = issue(ledger, DELTA, EVIDENCE)
    write(certificate, certificate_path)
    console.rule("2  The certificate: what may be promised")
    show_certificate(console, certificate)
    console.print()
    console.rule("3  The curve behind it: delta against epsilon (substitution, k=1)")
    sound, naive = curve([STEP]), curve([STEP], "add-remove")
    epsilons = np.linspace(0, sound.epsilon(1e-8), 61)
    console.print(chart(epsilons.tolist(), sound.deltas(epsilons).tolist(), "epsilon", "delta"), highlight=False)
    claimed = naive.epsilon(DELTA)
    console.print(
        f"\nAccounting for a removed record instead of a masked secret would claim epsilon {up(claimed)}; at that epsilon "
        f"the true delta is {sound.delta(claimed):.2g}, not {DELTA:g}.\n",
        highlight=False,
    )
    console.rule("4  Anyone can check it without the data")
    checked = verify(folder)
    say(console, f"confide verify {escape(str(folder))}: [green]holds[/], {checked.numbers} numbers compared")
    refusal = escape(_cheat(folder, certificate))
    say(console, f"the same with one number changed: [red]{refusal}[/]")
    console.print(f"\nThe certificate is in {certificate_path}", highlight=False)
    secret = next(g for g in certificate["guarantees"] if g["name"] == "per-secret")
    return {
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
