"""What was measured of a run, as flat numbers: the folder of a finished job in; a row of a CSV file out.

A run counts only if its certificate verifies and it was judged on the very data that lie here: anything else raises.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..accounting import verify
from ..accounting.events import PoissonGaussian
from ..accounting.ledger import read_ledger
from ..accounting.papers import crt_bayesian_at, rdp_epsilon
from ..accounting.setting import flags_all
from ..attacks.statistics import clopper_pearson
from ..errors import Contradiction
from .jobs import ATTACKS, EPOCHS, EVALUATION, FINISHED, Bench, Job, file_digests
from .scales import ORIGINAL, PRIVATE

UNSEEN = 1 / math.log(2)  # bits: the mean exposure of a canary that was never trained on
BOUNDS = ("epsilon", "bayesian", "amplified")  # rounded upwards, and the largest over seeds
# Every number that a study may show, and what it is
COLUMNS: dict[str, str] = {
    "epsilon": "sound ε",
    "bayesian": "Bayesian ε",
    "paper_epsilon": "ε as the papers count",
    "paper_bayesian": "Bayesian ε as CRT counts",
    "ppl": "PPL",
    "ppl_sdp": "PPL per token of S-DP",
    "ppl_non_secret_sdp": "PPL per token of S-DP, non-secret",
    "ppl_non_secret": "PPL, non-secret",
    "ppl_secret": "PPL, secret",
    "bits": "bits a character",
    "accuracy": "next tokens right",
    "line_ppl": "PPL on lines",
    "line_ppl_non_secret": "PPL on lines, non-secret",
    "class_accuracy": "accuracy",
    "exposure_max": "largest exposure",
    "exposure_mean": "mean exposure",
    "canaries": "canaries trained on",
    "mia_auc": "MIA, AUC",
    "mia_blind": "AUC without the model",
    "group_auc": "group MIA, AUC",
    "paper_mia": "MIA as CRT counts",
    "paper_mia_chance": "chance of that",
    "paper_group": "group MIA as CRT counts",
    "paper_group_chance": "chance of that",
    "sdp_mia": "MIA as S-DP counts",
    "sdp_mia_chance": "chance of that",
    "sdp_rounds": "S-DP's MIA in two rounds",
    "sdp_rounds_chance": "chance of that",
    "amplified": "Bayesian ε",
    "redacted": "share redacted",
}


CERTIFIED = ("crt", "dpsgd", "jft")  # and sdp, where its certificate has not been refused
TOLERANCE = 1e-6


def numbers(job: Job, bench: Bench, missed: float = 0.1) -> dict[str, Any]:
    """All numbers of a finished job; those that were not measured are left out. `missed` is what Bayesian ε are about."""
    folder, done = _checked(job, bench)
    found: dict[str, Any] = {"run": folder.name, "seconds": round(sum(done["seconds"].values()))}
    found |= _privacy(folder, missed) | done.get("published", {})
    if job.train["method"] in PRIVATE:
        found.setdefault("epsilon", math.inf)
        found |= _noised(job, folder)
    judged = json.loads((folder / EVALUATION).read_text(encoding="utf-8"))
    found |= _utility(judged, job, bench) | bench.misses(job)
    if job.corpus == ORIGINAL and not bench.own_tokens:
        found |= _as_sdp_counts(judged["documents"], bench.sdp_tokens(job.corpus, job.split, job.tests))
    if (folder / ATTACKS).exists():
        found |= _attacked(json.loads((folder / ATTACKS).read_text(encoding="utf-8")), job)
    return found


def epochs(job: Job, bench: Bench, missed: float = 0.1) -> list[dict[str, Any]]:
    """The same after every epoch, as far as it was judged then: utility, and ε of the steps so far."""
    folder, done = _checked(job, bench)
    about = _privacy(folder, missed)
    whole = {name: about.pop(name) for name in (*BOUNDS, "paper_epsilon", "paper_bayesian") if name in about}
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for line in (folder / EPOCHS).read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        spent = sum(one["spent"].values())
        row = {"epoch": one["epoch"] + 1, "run": folder.name, **_utility(one, job, bench), **bench.misses(job)}
        if spent and about:
            row |= about | _epsilons(folder, missed, spent)
        found[one["phase"], one["epoch"]] = row  # a resumed run may have judged an epoch twice
    rows = list(found.values())
    if rows:  # of all steps: also where those of an epoch cannot be counted by themselves
        if job.train["method"] in PRIVATE:
            whole.setdefault("epsilon", math.inf)
        rows[-1] |= whole | done.get("published", {})
    return rows


def _checked(job: Job, bench: Bench) -> tuple[Path, dict[str, Any]]:
    """The folder of a finished job and its `job.json`, if it is this job's, on these data, under a certificate of its own that holds."""
    folder = bench.finished(job)
    if folder is None:
        raise Contradiction(f"{job.name} is not finished")
    done = json.loads((folder / FINISHED).read_text(encoding="utf-8"))
    if done["key"] != job.key or done["job"] != json.loads(json.dumps(asdict(job))):
        raise Contradiction(f"{folder.name} holds a run of another description")
    kept = bench.kept is not None and folder.parent == bench.kept
    if (kept or "files" in done) and done.get("files") != file_digests(folder):
        raise Contradiction(f"{folder.name}: a file of it is not the one that the run left")
    if not done.get("published", {}).keys() <= ({"redacted", "paper_epsilon"} if _as_published(job) else {"redacted"}):
        raise Contradiction(f"{folder.name} states an ε that is not its to state")
    for split in ("train", job.split):
        if bench.digest(job.corpus, split) != done["data"].get(split):
            raise Contradiction(
                f"{folder.name} was made from another {split} split of {job.corpus} than the one that lies here"
            )
    if not (folder / "certificate.json").exists():
        if job.train["method"] in CERTIFIED:
            raise Contradiction(f"{folder.name} has lost its certificate")
        return folder, dict(done)
    certificate = verify(folder).certificate
    wrong = next(of_another_run(job, bench, certificate, folder), None)
    if wrong is not None:
        raise Contradiction(f"{folder.name} holds a certificate of another run: its {wrong} is not that of the run")
    return folder, dict(done)


def _as_published(job: Job) -> bool:
    """Whether a run is of S-DP's own algorithm, whose published ε no ledger gives."""
    return job.train.get("variant") == "paper"


def of_another_run(job: Job, bench: Bench, certificate: dict[str, Any], folder: Path) -> Iterator[str]:
    """In what a certificate, or its ledger, is not about a job."""
    setting, train = certificate["setting"], job.train
    if certificate["method"] != train["method"]:
        yield "method"
    if certificate["delta"] != train["delta"]:
        yield "delta"
    if certificate["unit"] != job.screen["unit"]:
        yield "unit"
    if not setting["subject"].endswith(f" on {bench.screened_name(job)}"):
        yield "screened corpus"
    if setting.get("weights", "outside") != train.get("weights_from", "outside"):
        yield "initial weights"
    if not math.isclose(setting["clipping_norm"], train.get("clip_norm", setting["clipping_norm"])):
        yield "clipping norm"
    for phase, event in read_ledger(folder / "ledger.jsonl").planned:
        noise = train.get("phase1_noise" if phase == "phase1" else "noise")
        if noise is not None and not math.isclose(noise, getattr(event, "noise_multiplier", noise)):
            yield f"noise of {phase}"
    target, reached = train.get("epsilon"), [one["epsilon"] for one in certificate["guarantees"] if one["epsilon"]]
    if target is not None and reached and not 0.9 * target <= reached[0] <= target * (1 + TOLERANCE):
        yield "epsilon"


def _privacy(folder: Path, missed: float) -> dict[str, Any]:
    if not (folder / "certificate.json").exists():
        return {}
    certificate = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    stated = [one for one in certificate["guarantees"] if one["epsilon"] is not None]
    found: dict[str, Any] = {name: certificate[name] for name in ("delta", "unit", "sampler")}
    found["weights"] = certificate["setting"].get("weights", "outside")
    if stated:
        found |= {
            "epsilon": stated[0]["epsilon"],
            "guarantee": stated[0]["name"],
            "whose": _whose(certificate["setting"], stated[0]["name"]),
            "k": stated[0]["k"],
            "adjacency": certificate["adjacency"]["name"],
        }
    return _epsilons(folder, missed) | found


def _whose(setting: dict[str, Any], guarantee: str) -> str:
    """Which secrets a guarantee is about, in short."""
    if guarantee != "per-secret":
        return {"selective": "marked tokens", "caught-secret": "secrets that phase 1 caught"}[guarantee]
    if setting.get("weights", "outside") != "outside":
        return "secrets in flagged lines" + (" of flagged records" if setting["method"] == "crt" else "")
    if setting["method"] != "crt" or setting["conservative"] == "everything":
        return "all secrets"
    return str(setting["recall_class"] or "flagged secrets")


def _noised(job: Job, folder: Path) -> dict[str, float]:
    """How a run was noised, in its last noised phase; nothing of S-DP's own algorithm, whose steps are of another kind."""
    spent = events_of(folder)
    if not spent:
        return {}
    return {
        "noised_steps": sum(one.count for one in spent if one.noise_multiplier == spent[-1].noise_multiplier),
        "sampling_rate": spent[-1].sampling_rate,
        "noise": spent[-1].noise_multiplier,
        "clip_norm": job.train.get("clip_norm", 1.0),
        "noised_learning_rate": job.train.get("private_learning_rate", job.train["learning_rate"]),
    }


def events_of(folder: Path) -> list[PoissonGaussian]:
    """The noised steps of a run's ledger."""
    return [event for _, event in read_ledger(folder / "ledger.jsonl").spent if isinstance(event, PoissonGaussian)]


def _epsilons(folder: Path, missed: float, steps: int | None = None) -> dict[str, float]:
    """ε of a ledger's first private steps, soundly and by the papers' counts (which a certificate never holds).

    A Bayesian ε is smaller than ε only for crt with a mask-consistent policy: DP-SGD trains on what the policy finds too, and of
    JFT no finite one is known where phase 1 has no noise (guarantees §3 and §6). It takes δ₂ = 0: it is about secrets that the
    conservative policy flags wherever they stand, which of names that are words a list of words does not.
    """
    from ..accounting import curve
    from ..accounting.bayesian import slot_epsilon

    certificate = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    setting, delta, adjacency = certificate["setting"], certificate["delta"], certificate["adjacency"]["name"]
    spent = events_of(folder)
    if not spent or len({(one.sampling_rate, one.noise_multiplier) for one in spent}) > 1:
        return {}  # two noises: the certificate's own ε stands for all
    count = sum(one.count for one in spent)
    event = replace(spent[0], count=min(count, steps or count))
    selective = adjacency == "selective"  # about marked tokens: counted as a substitution, and no miss rate enters it
    sound = curve([event], "substitution" if selective else adjacency, certificate["k"]["missed"])
    found = {"epsilon": sound.epsilon(delta), "paper_epsilon": rdp_epsilon(event, delta, conversion="old")}
    if missed and setting["method"] in ("crt", "dpsgd"):
        amplified = setting["method"] == "crt" and setting["mask_consistent"] and flags_all(setting)
        amplified = amplified and setting.get("weights", "outside") == "outside"
        found["bayesian"] = slot_epsilon(sound, missed, delta) if amplified else found["epsilon"]
    if missed and setting["method"] == "crt":
        found["paper_bayesian"] = crt_bayesian_at(event, delta, missed)
    return found


def _as_sdp_counts(part: dict[str, Any], tokens: int) -> dict[str, float]:
    """Perplexities per token as S-DP counted them; those inside secrets are the same either way."""
    secret = part["secret"]["reference_tokens"]
    return {
        "ppl_sdp": math.exp(part["nats"] / tokens),
        "ppl_non_secret_sdp": math.exp(part["non_secret"]["nats"] / (tokens - secret)),
    }


def _utility(found: dict[str, Any], job: Job, bench: Bench) -> dict[str, Any]:
    """Perplexities from the nats and tokens that were measured; the tokens must be those of the reference that lies here."""
    if "classes" in found:
        share, texts = found["classes"]["accuracy"], found["classes"]["texts"]
        low, high = clopper_pearson(round(share * texts), texts)
        return {"class_accuracy": share, "class_accuracy_low": low, "class_accuracy_high": high, "texts": texts}
    rows: dict[str, Any] = {"texts": found["documents"]["texts"]}
    expected = (
        None if bench.own_tokens else bench.reference_tokens(job.corpus, job.split, min(job.tests, rows["texts"]))
    )
    for prefix, name in (("", "documents"), ("line_", "lines")):
        if name not in found:
            continue
        part = found[name]
        if expected is not None and part["reference_tokens"] != expected[name]:
            raise Contradiction(
                f"{job.name} was judged by another reference tokenizer, or on other texts, than lie here"
            )
        rows |= {
            f"{prefix}ppl": _perplexity(part),
            f"{prefix}bits": part["nats"] / math.log(2) / part["characters"],
            f"{prefix}accuracy": part["accuracy"],
        }
        rows |= {f"{prefix}ppl_{kind}": _perplexity(part[kind]) for kind in ("non_secret", "secret") if kind in part}
    return rows


def _perplexity(part: dict[str, Any]) -> float | None:
    try:
        return math.exp(part["nats"] / part["reference_tokens"]) if part["reference_tokens"] else None
    except OverflowError:
        return math.inf


def _attacked(found: dict[str, Any], job: Job) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    exposure = found.get("exposure", {})
    if "max" in exposure:
        rows |= {"exposure_max": exposure["max"], "exposure_mean": exposure["mean"], "canaries": exposure["number"]}
        low, high = exposure["chance"]["mean_interval"]  # of as many canaries that were never trained on
        rows |= {
            "exposure_mean_low": max(0.0, exposure["mean"] - (high - UNSEEN)),
            "exposure_mean_high": min(_most_bits(job), exposure["mean"] + UNSEEN - low),
        }
    membership = found.get("membership", {})
    if "strongest" in membership:
        rows |= _interval("mia_auc", membership["strongest"]["auc"])
        rows["mia_blind"] = membership["blind"]["auc"]["value"]
        if membership.get("group"):
            rows |= _interval("group_auc", membership["group"]["attacks"]["loss"]["auc"])
    for name, column in (
        ("crt", "paper_mia"),
        ("crt-group", "paper_group"),
        ("sdp", "sdp_mia"),
        ("sdp-two-round", "sdp_rounds"),
    ):
        one = membership.get("papers", {}).get(name, {})
        if "accuracy" in one:
            rows |= {
                column: one["accuracy"],
                f"{column}_chance": one["chance"],
                f"{column}_chance_high": one["chance_high"],
            }
    rows["contradictions"] = len(found.get("contradictions", ()))
    return rows


def _most_bits(job: Job) -> float:
    """The largest exposure there is: the bits of the space that canaries are drawn from, by default six digits."""
    digits = re.search(r"\{digits:(\d+)\}", str(job.screen["canaries"]))
    return math.log2(10) * int(digits[1] if digits else 6)


def _interval(name: str, estimate: dict[str, Any]) -> dict[str, Any]:
    return {name: estimate["value"], f"{name}_low": estimate["low"], f"{name}_high": estimate["high"]}
