"""A small run folder with every part, made by hand: nothing is trained, the certificate is a real one."""

import json

import pytest
import yaml

from confide.accounting import LedgerWriter, PoissonGaussian, Review, Setting, issue, read_ledger, write

NASTY = "<script>alert(1)</script>]]>"
DIGEST = "d" * 64


def rate(found, of):
    return {"found": found, "of": of, "rate": found / of, "interval": [0.01, 0.4]}


def estimate(value, low, high):
    return {"value": value, "low": low, "high": high, "chance": 0.5}


def measured(value):
    nothing = {"value": None, "low": None, "high": None, "chance": 0.01, "reason": "few"}
    return {
        "auc": estimate(value, value - 0.1, value + 0.1),
        "accuracy": estimate(value, value - 0.1, value + 0.1),
        "tpr_at_0.01": nothing,
        "tpr_at_0.001": nothing,
        "roc": [[0.0, 0.0], [0.01, 0.02], [0.5, value], [1.0, 1.0]],
    }


def exposures(values):
    return {
        "canaries": [{"canary": n, "rank": 9, "ties": 0, "exposure": value} for n, value in enumerate(values)],
        "number": len(values),
        "mean": sum(values) / len(values),
        "mean_interval": [1.0, 2.0],
        "max": max(values),
        "chance": {"mean": 1.44, "mean_interval": [0.5, 3.0], "max": 4.2, "max_interval": [2.0, 9.0]},
    }


def attacks(contradictions=()):
    audit = {
        "runs": 1, "canaries": 1000, "present": 500, "guesses": 100, "right": 62, "confidence": 0.95, "lower_bound": 0.237,
        "reach": 3.26, "certified": 2.0, "records": 1, "contradicts": False, "says": "It agrees with it.",
        "coins": {
            **measured(0.553),
            "ceiling": {"accuracy": 0.61, "about": "1 changed record",
                        "curve": [{"fpr": p, "tpr_at_most": min(1, 3 * p)} for p in (0.001, 0.01, 0.1, 1.0)]},
        },
    }  # fmt: skip
    game = {"top_1": {"training": rate(7, 100), "control": rate(5, 100)}}
    found = {
        side: {"found": n, "of": 919191, "rate": 0.0, "interval": [0, 1]}
        for side, n in (("training", 818181), ("control", 0))
    }
    return {
        "confide_attacks": 1, "confide": "0.1.0", "run": "r", "method": "crt",
        "certificate": {"name": "per-secret", "epsilon": 2.0, "delta": 1e-5, "k": 1, "adjacency": "substitution", "unit": "turn", "sampler": "poisson"},
        "shareable": ["exposure", "audit", "membership"],
        "exposure": {"space": 10**6, "bits": 19.93, **exposures([0.5, 1.2, 3.1]), "control": exposures([0.7, 2.0]), "copies": 1,
                     "ceiling": {"mean": 2.36, "max": 6.0, "about": "1 changed record"}},
        "membership": {
            "members": 717171, "others": 616161, "attacks": {"loss": measured(0.527), NASTY: measured(0.515)}, "blind": measured(0.5),
            "strongest": {"name": NASTY, **measured(0.5353)}, "group": None, "ceiling": None, "no_ceiling": "which were held out was no coin",
        },
        "extraction": {"without_prompt": {"all": {"exact": found}}, "with_prompt": {"skipped": "few"}},
        "inference": {"number": 10, "all": game},
        "reconstruction": {"all": game},
        "audit": {"black_box": audit},
        "contradictions": list(contradictions),
    }  # fmt: skip


REVIEW = {
    "confide_review": 1, "digest": DIGEST, "confidence": 0.95, "cap": 10, "bound": 0.0414141, "bound_public": 0.0212121, "reviewers": 2,
    "agreement": 0.9757, "records": [[2, 0, 0], [1, 1, 0], "skipped"],
    "types": {NASTY: {"secrets": 515151, "missed": 1, "bound": 0.0434343}, "NAME": {"secrets": 40, "missed": 0, "bound": 0.08}},
}  # fmt: skip


def manifest():
    return {
        "records": 414141, "public": 212121, "private": 202020, "documents": 313131, "mask_only": 111213, "private_duplicates": 101112,
        "public_duplicates": 121314, "bad_rows": 131415, "findings": {NASTY: 141516, "NAME": 151617, "$x_1$ 5 % & more": 3}, "unit": "turn",
        "dedup_unit": "record", "policy": {"spec": NASTY}, "conservative": {"spec": "everything"}, "digest": DIGEST, "warnings": [NASTY],
    }  # fmt: skip


def make_run(
    folder,
    method="crt",
    *,
    policy="patterns",
    parts=("certificate", "model", "attacks", "manifest", "review"),
    **choices,
):
    """A run's folder with the named parts."""
    folder.mkdir(parents=True)
    screened = folder.parent / "screened"
    options = {
        "model": "lstm",
        "method": method,
        "task": "causal",
        "epochs": 2,
        "keep": "last",
        "validate_on": "unflagged",
        "seed": 181920,
    }
    options |= choices
    config = {"confide": "0.1.0", "screened": str(screened), "digest": DIGEST, "options": options}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    private = method in ("crt", "dpsgd", "sdp", "jft")
    lines = [
        {"phase": "train", "epoch": n, "slot": 10 * (n + 1), "validation_loss": 1.5 - 0.3 * n, "validation_accuracy": 0.4,
         **({"epsilon": 1.0 + n, "delta": 1e-5, "epsilon_of": "substitution"} if private else {})} for n in range(2)
    ]  # fmt: skip
    (folder / "telemetry.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines) + '{"torn')
    if private:
        _certify(folder, method, policy, "review" in parts, "certificate" in parts)
    if "model" in parts:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")
    if "attacks" in parts:
        (folder / "attacks.json").write_text(json.dumps(attacks()))
    screened.mkdir(exist_ok=True)
    for name, content in (("manifest", manifest()), ("review", REVIEW)):
        if name in parts:
            (screened / f"{name}.json").write_text(json.dumps(content))
    return folder


def _certify(folder, method, policy, reviewed, certificate):
    setting = Setting(
        method,
        "turn",
        policy,
        "everything",
        1000,
        1.0,
        mask_consistent=True,
        subject=f"{policy} of /home/alice/models/m on screened",
    )
    phase = "phase2" if method == "jft" else "train"
    with LedgerWriter.create(
        folder / "ledger.jsonl", setting.to_plain(), [(phase, PoissonGaussian(0.05, 2.0, 40))]
    ) as writer:
        for _ in range(4):
            writer.append(PoissonGaussian(0.05, 2.0, 10), phase)
    if certificate:
        evidence = (
            Review(records=((2, 0, 0),) * 177 + ((1, 1, 0),), cap=10, confidence=0.95)
            if reviewed and method == "crt"
            else None
        )
        write(issue(read_ledger(folder / "ledger.jsonl"), 1e-5, evidence), folder / "certificate.json")


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A run with every part, in which whatever a user may name is hostile."""
    home = tmp_path_factory.mktemp("whole")
    make_run(home / "plain", "plain", parts=("model",))
    return make_run(home / "a<b>'&run", policy=NASTY, model=NASTY, special_tokens=[NASTY])


@pytest.fixture(scope="session")
def make():
    return make_run


@pytest.fixture(scope="session")
def nasty():
    return NASTY
