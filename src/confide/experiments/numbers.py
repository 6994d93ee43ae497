"""What was measured of a run, as flat numbers: the folder of a finished job in; a row of a CSV file out.

A run counts only if its certificate verifies and it was judged on the very data that lie here: anything else raises.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..accounting import verify
from ..accounting.events import PoissonGaussian
from ..accounting.ledger import read_ledger
from ..accounting.papers import crt_bayesian_at, rdp_epsilon
from ..errors import Contradiction
from .jobs import ATTACKS, EPOCHS, EVALUATION, FINISHED, UNTRAINED, Bench, Job

UNSEEN = 1 / math.log(2)  # bits: the mean exposure of a canary that was never trained on
# Every number that a study may show, and what it is
COLUMNS: dict[str, str] = {
    "epsilon": "sound ε",
    "bayesian": "Bayesian ε",
    "paper_epsilon": "ε as the papers count",
    "paper_bayesian": "Bayesian ε as CRT counts",
    "ppl": "PPL",
    "ppl_non_secret": "PPL, non-secret",
    "ppl_secret": "PPL, secret",
    "bits": "bits a character",
    "accuracy": "next tokens right",
    "line_ppl": "PPL on lines",
    "line_ppl_non_secret": "PPL on lines, non-secret",
    "class_accuracy": "accuracy",
    "exposure_max": "largest exposure",
    "exposure_mean": "mean exposure",
    "mia_auc": "MIA, AUC",
    "mia_blind": "AUC without the model",
    "group_auc": "group MIA, AUC",
    "paper_mia": "MIA as CRT counts",
    "paper_mia_chance": "chance of that",
    "paper_group": "group MIA as CRT counts",
    "paper_group_chance": "chance of that",
    "sdp_mia": "MIA as S-DP counts",
    "sdp_mia_chance": "chance of that",
    "amplified": "Bayesian ε",
    "redacted": "share redacted",
}


def numbers(job: Job, bench: Bench, missed: float = 0.1) -> dict[str, Any]:
    """All numbers of a finished job; those that were not measured are left out. `missed` is what Bayesian ε are about."""
    folder = bench.finished(job)
    if folder is None:
        raise Contradiction(f"{job.name} is not finished")
    done = json.loads((folder / FINISHED).read_text(encoding="utf-8"))
    if done["key"] != job.key:
        raise Contradiction(f"{folder.name} holds a run of another description")
    for split, digest in done["data"].items():
        if bench.digest(job.corpus, split) != digest:
            raise Contradiction(
                f"{folder.name} was made from another {split} split of {job.corpus} than the one that lies here"
            )
    found: dict[str, Any] = {"run": folder.name, "seconds": round(sum(done["seconds"].values()))}
    found |= _privacy(folder, job, missed) | done.get("published", {})
    found |= _utility(json.loads((folder / EVALUATION).read_text(encoding="utf-8")))
    if (folder / ATTACKS).exists():
        found |= _attacked(json.loads((folder / ATTACKS).read_text(encoding="utf-8")))
    return found


def epochs(job: Job, bench: Bench, missed: float = 0.1) -> list[dict[str, Any]]:
    """The same after every epoch, as far as it was judged then: utility, and ε of the steps so far."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    folder = bench.finished(job) or bench.run(job)
    for line in (folder / EPOCHS).read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        spent = sum(one["spent"].values())
        row = {"epoch": one["epoch"] + 1, **_utility(one)}
        if spent and (folder / "certificate.json").exists():
            certificate = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
            row |= _epsilons(folder, certificate, missed, spent)
        found[one["phase"], one["epoch"]] = row  # a resumed run may have judged an epoch twice
    return list(found.values())


def _privacy(folder: Path, job: Job, missed: float) -> dict[str, Any]:
    if job.train["method"] == UNTRAINED or not (folder / "certificate.json").exists():
        return {}
    verify(folder)
    certificate = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    stated = [one for one in certificate["guarantees"] if one["epsilon"] is not None]
    found: dict[str, Any] = {name: certificate[name] for name in ("delta", "unit", "sampler")}
    if stated:
        found |= {
            "epsilon": stated[0]["epsilon"],
            "guarantee": stated[0]["name"],
            "k": stated[0]["k"],
            "adjacency": certificate["adjacency"]["name"],
        }
    return _epsilons(folder, certificate, missed) | found


def _epsilons(folder: Path, certificate: dict[str, Any], missed: float, steps: int | None = None) -> dict[str, float]:
    """ε of a ledger's first private steps, soundly and by the papers' counts (which a certificate never holds)."""
    from ..accounting import curve
    from ..accounting.bayesian import slot_epsilon

    spent = [event for _, event in read_ledger(folder / "ledger.jsonl").spent if isinstance(event, PoissonGaussian)]
    if not spent:
        return {}
    first, count = spent[0], sum(event.count for event in spent)
    event = PoissonGaussian(first.sampling_rate, first.noise_multiplier, min(count, steps or count))
    delta, adjacency = certificate["delta"], certificate["adjacency"]["name"]
    selective = adjacency == "selective"  # about marked tokens: counted as a substitution, and no miss rate enters it
    sound = curve([event], "substitution" if selective else adjacency, certificate["k"]["missed"])
    found = {"epsilon": sound.epsilon(delta), "paper_epsilon": rdp_epsilon(event, delta, conversion="old")}
    if missed and not selective:
        found |= {
            "bayesian": slot_epsilon(sound, missed, delta),
            "paper_bayesian": crt_bayesian_at(event, delta, missed),
        }
    return found


def _utility(found: dict[str, Any]) -> dict[str, Any]:
    if "classes" in found:
        return {"class_accuracy": found["classes"]["accuracy"]}
    rows: dict[str, Any] = {}
    for prefix, part in (("", found["documents"]), ("line_", found.get("lines", {}))):
        if part:
            rows |= {
                f"{prefix}ppl": part["perplexity"],
                f"{prefix}bits": part["bits_per_character"],
                f"{prefix}accuracy": part["accuracy"],
            }
            for kind in ("non_secret", "secret"):
                if kind in part:
                    rows[f"{prefix}ppl_{kind}"] = part[kind]["perplexity"]
    return rows


def _attacked(found: dict[str, Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    exposure = found.get("exposure", {})
    if "max" in exposure:
        rows |= {"exposure_max": exposure["max"], "exposure_mean": exposure["mean"], "canaries": exposure["number"]}
        low, high = exposure["chance"]["mean_interval"]  # of as many canaries that were never trained on
        rows |= {"exposure_mean_low": exposure["mean"] - (high - UNSEEN), "exposure_mean_high": exposure["mean"] + UNSEEN - low}
    membership = found.get("membership", {})
    if "strongest" in membership:
        rows |= _interval("mia_auc", membership["strongest"]["auc"])
        rows["mia_blind"] = membership["blind"]["auc"]["value"]
        if membership.get("group"):
            rows |= _interval("group_auc", membership["group"]["attacks"]["loss"]["auc"])
    for name, column in (("crt", "paper_mia"), ("crt-group", "paper_group"), ("sdp", "sdp_mia")):
        one = membership.get("papers", {}).get(name, {})
        if "accuracy" in one:
            rows |= {
                column: one["accuracy"],
                f"{column}_chance": one["chance"],
                f"{column}_chance_high": one["chance_high"],
            }
    rows["contradictions"] = len(found.get("contradictions", ()))
    return rows


def _interval(name: str, estimate: dict[str, Any]) -> dict[str, Any]:
    return {name: estimate["value"], f"{name}_low": estimate["low"], f"{name}_high": estimate["high"]}
