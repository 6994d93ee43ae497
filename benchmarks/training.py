"""Confidential training against plain training on the same tokens, from end to end. Ratios within one run.

python benchmarks/training.py [--quick] [--json] [--rounds N] [--models NAMES]
python benchmarks/training.py --epoch DATA --tokenizer DIR [--json]

`redacted` and `crt` train the same model on the same screened records of a simulated corpus for one epoch: the one without
noise, the other with noise on the private part. Each run is a process of its own; a round is one run of each, in random
order, and a ratio is the median over rounds of two times of the same round. The time is that of the whole of `train`
(records are read and tokenised, ledger and checkpoints written, the certificate issued). `loop` is the share of the
steps' time that is spent outside of the model, the engine and the optimizer: batches, sampling, ledger, telemetry.

`--epoch` takes the time of one epoch of CRT with the papers' LSTM on a corpus of JSON lines such as the original
CustomerSim, with its parts; DIR holds GPT-2's tokenizer.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

SHAPES = {
    "gpt2-tiny": {"model": "gpt2-tiny", "vocabulary_size": 2048, "max_length": 64},
    "lstm": {"model": "lstm", "vocabulary_size": 8192, "max_length": 128},
}
POLICY = "miss(customersim, 0.1)"


def corpus(folder: Path, dialogues: int) -> None:
    from confide.experiments.customersim import write_corpus
    from confide.screening import screen

    write_corpus(folder / "corpus", dialogues, 0, dialogues, lambda: None)
    screen(str(folder / "corpus" / "train.jsonl"), POLICY, folder / "screened", unit="turn", conservative="allowlist")


def one(folder: Path, shape: dict[str, Any], method: str) -> dict[str, float]:
    """One run in this process, with the time spent in the model."""
    import torch

    from confide.dp import PrivateGradients, keep_memory
    from confide.training import loop, make_plan, train_plan
    from confide.training.steps import PublicGradients

    keep_memory()
    inside: dict[str, float] = {}

    def timed(owner: Any, name: str) -> None:
        own = getattr(owner, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return own(*args, **kwargs)
            finally:
                inside[name] = inside.get(name, 0.0) + time.perf_counter() - began

        setattr(owner, name, run)

    timed(PublicGradients, "backward")
    timed(PrivateGradients, "accumulate")
    timed(PrivateGradients, "release")
    timed(torch.optim.AdamW, "step")
    for name in ("public_step", "private_step", "checkpoint", "end_epoch"):
        timed(loop.Work, name)
    noise = {"epsilon": 2.0, "delta": 8e-5, "private_batch_size": 512} if method == "crt" else {}
    began = time.perf_counter()
    plan = make_plan(folder / "screened", method=method, epochs=1, batch_size=32, **shape, **noise)
    planned = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        train_plan(plan, Path(out) / "run")
    ended = time.perf_counter()
    model = sum(inside.get(name, 0.0) for name in ("backward", "accumulate", "release", "step"))
    steps = inside.get("public_step", 0.0) + inside.get("private_step", 0.0)
    return {
        "seconds": ended - began,
        "planning": planned - began,
        "steps": steps,
        "model": model,
        "checkpoints": inside.get("checkpoint", 0.0),
        "validation": inside.get("end_epoch", 0.0),
        "loop": 1 - model / steps,
    }


def compare(models: list[str], rounds: int, dialogues: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        corpus(Path(folder), dialogues)
        for name in models:
            times: dict[str, list[dict[str, float]]] = {"redacted": [], "crt": []}
            for _ in range(rounds):
                for method in random.sample(sorted(times), 2):
                    times[method].append(apart("--one", folder, name, method))
            ratios = [b["seconds"] / a["seconds"] for a, b in zip(times["redacted"], times["crt"], strict=True)]
            steps = [b["steps"] / a["steps"] for a, b in zip(times["redacted"], times["crt"], strict=True)]
            found[name] = {
                "crt to plain": statistics.median(ratios),
                "quartiles": statistics.quantiles(ratios, n=4, method="inclusive")[::2],
                "steps alone": statistics.median(steps),
                "loop": {m: statistics.median(t["loop"] for t in runs) for m, runs in times.items()},
                "seconds": {m: statistics.median(t["seconds"] for t in runs) for m, runs in times.items()},
            }
    return found


def apart(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def epoch(data: Path, tokenizer: Path) -> dict[str, Any]:
    """One epoch of CRT with the papers' LSTM, and its parts."""
    from confide.screening import screen

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        screened = screen(str(data), POLICY, Path(folder) / "screened", unit="turn", conservative="allowlist")
        screening = time.perf_counter() - began
        shape = {"model": "lstm", "tokenizer": str(tokenizer), "max_length": 128, "microbatch": 32}
        found = one(Path(folder), shape, "crt")
        return {
            "records": screened.manifest["records"],
            "private": screened.manifest["private"],
            "screening": screening,
            **found,
        }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="one round on a small corpus")
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--models", default=",".join(SHAPES))
    arguments.add_argument("--epoch", type=Path, metavar="DATA")
    arguments.add_argument("--tokenizer", type=Path, metavar="DIR")
    arguments.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.one:
        print(json.dumps(one(Path(given.one[0]), SHAPES[given.one[1]], given.one[2])))
        return
    if given.epoch:
        if given.tokenizer is None:
            arguments.error("--epoch needs --tokenizer DIR")
        found = epoch(given.epoch, given.tokenizer)
        print(
            json.dumps(found) if given.json else "\n".join(f"{name:12} {value:,.4g}" for name, value in found.items())
        )
        return
    models = given.models.split(",")
    found = compare(models, 2 if given.quick else given.rounds, 100 if given.quick else 1000)
    if given.json:
        print(json.dumps(found))
        return
    table = Table(
        "model", "crt to plain", "quartiles", "steps alone", "outside the model (plain, crt)", "seconds (plain, crt)"
    )
    for name, numbers in found.items():
        low, high = numbers["quartiles"]
        table.add_row(
            name, f"{numbers['crt to plain']:.2f}", f"{low:.2f}–{high:.2f}", f"{numbers['steps alone']:.2f}",
            ", ".join(f"{value:.1%}" for value in numbers["loop"].values()),
            ", ".join(f"{value:.1f}" for value in numbers["seconds"].values()),
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
