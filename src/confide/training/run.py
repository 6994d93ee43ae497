"""The end of a run: what was trained in; a model, a certificate and the finished run, as others read it, out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ..accounting import LedgerWriter, issue, read_ledger, write
from ..errors import ConfideError
from ..models import check_sums, load_trained, save
from ..models.loading import SUMS
from ..plain_yaml import run_config
from ..rundir import model_files, read_file, swap_in, sync_tree
from . import processes
from .prepared import Prepared
from .telemetry import read_telemetry


@dataclass(frozen=True)
class Run:
    """A finished run on disk."""

    folder: Path

    def model(self) -> Any:
        """The trained model: an ordinary Hugging Face model."""
        return load_trained(self.folder / "model")[0]

    def tokenizer(self) -> Any:
        return load_trained(self.folder / "model")[1]

    @property
    def certificate(self) -> dict[str, Any] | None:
        path = self.folder / "certificate.json"
        return dict(json.loads(read_file(path))) if path.exists() else None

    def telemetry(self) -> list[dict[str, Any]]:
        return read_telemetry(self.folder / "telemetry.jsonl")

    def summary(self) -> dict[str, Any]:
        """What became of the run, in public numbers."""
        config = run_config(self.folder)
        certificate, lines = self.certificate, self.telemetry()
        validated = [line for line in lines if line.get("validation_loss") is not None]
        if config["options"]["keep"] == "best" and validated:
            phase = [line for line in validated if line["phase"] == validated[-1]["phase"]]
            validated = sorted(phase, key=lambda line: -float(line["validation_loss"]))
        found: dict[str, Any] = {
            "run": str(self.folder),
            "model": str(self.folder / "model"),
            "method": config["options"]["method"],
            "task": config["options"]["task"],
            "validated_on": "all records" if config["options"]["validate_on"] == "all" else "public records",
            "validation_loss": validated[-1]["validation_loss"] if validated else None,
            "validation_accuracy": validated[-1].get("validation_accuracy") if validated else None,
            "certificate": None if certificate is None else str(self.folder / "certificate.json"),
        }
        if certificate is not None:
            main = certificate["guarantees"][0]
            found |= {
                "epsilon": main["epsilon"],
                "delta": main["delta"],
                "k": main["k"],
                "adjacency": certificate["adjacency"]["name"],
                "unit": certificate["unit"],
                "sampler": certificate["sampler"],
                "steps": certificate["ledger"]["steps"],
                "guarantees": certificate["guarantees"],
            }
        return found


def finish(prepared: Prepared) -> Run:
    """Write the model and, for a private method, its certificate."""

    def write_all() -> None:
        folder, options = prepared.folder, prepared.plan.options
        best = folder / "best"
        for left in folder.glob("*.replaced"):  # by a power cut: what was removed last may be there again
            shutil.rmtree(left, ignore_errors=True)
        if prepared.resumed and _whole(prepared):
            pass  # it ended before, and whatever has been laid beside the weights since then stays
        elif options.keep == "best" and best.exists():
            check_sums(best, "remove it, and `confide train --resume` keeps the last state of the model instead")
            put_in_place(folder / "model", lambda draft: shutil.copytree(best, draft))
        else:
            put_in_place(folder / "model", lambda draft: save(prepared.model, prepared.tokenizer, draft))
        if options.private and prepared.plan.private and prepared.ledger_path is not None:
            assert options.delta is not None
            with LedgerWriter.resume(prepared.ledger_path) as ledger:
                ledger.name_model(model_files(folder / "model"))
            write(
                issue(read_ledger(prepared.ledger_path), options.delta, prepared.plan.evidence),
                folder / "certificate.json",
            )

    processes.shared(write_all)
    return Run(prepared.folder)


def _whole(prepared: Prepared) -> bool:
    """Whether the model that this run made lies there."""
    model = prepared.folder / "model"
    try:
        check_sums(model)
        there = model_files(model)
    except (ConfideError, OSError):
        return False
    named = None if prepared.ledger_path is None else read_ledger(prepared.ledger_path).model
    return (model / SUMS).is_file() and (named is None or named == there)


def put_in_place(folder: Path, make: Callable[[Path], object]) -> None:
    """Make a folder anew; under its name it is never seen half made."""
    draft = folder.with_name(f"{folder.name}.partial")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        make(draft)
        sync_tree(draft)
        swap_in(draft, folder)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfideError(f"cannot write {folder}: {reason}; make room, then go on with --resume") from None
