"""A small run folder with every part, made by hand: nothing is trained, the certificate is a real one."""

import contextlib
import json
import re
from html import unescape

import pytest
import yaml

from confide.accounting import LedgerWriter, PoissonGaussian, Review, Setting, issue, read_ledger, write
from confide.errors import BadInput

NASTY = "<script>alert(1)]]><b>"  # without a slash: what may be shared keeps the last component of a name only
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


def attacks(certificate=None, contradictions=()):
    """What `confide attack` writes of a run with this certificate."""
    stated, certified = None, None
    if certificate is not None:
        main = certificate["guarantees"][0]
        stated = {name: main[name] for name in ("name", "epsilon", "delta", "k")}
        stated |= {"adjacency": certificate["adjacency"]["name"], "unit": "turn", "sampler": "poisson"}
        certified = main["epsilon"]
    audit = {
        "runs": 1, "canaries": 1000, "present": 500, "guesses": 100, "right": 62, "confidence": 0.95, "lower_bound": 0.237,
        "reach": 3.26, "certified": certified, "records": 1, "contradicts": False, "says": "It agrees with it.",
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
        "certificate": stated,
        "shareable": ["exposure", "audit", "membership"],
        "exposure": {"way": "exact", "space": 10**6, "bits": 19.93, **exposures([0.5, 1.2, 3.1]), "control": exposures([0.7, 2.0]), "copies": 1,
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


ROWS = ((2, 0, 0),) * 177 + ((1, 1, 0),)
EVIDENCE = Review(records=ROWS, cap=10, confidence=0.95, begun=1, nonce="n0nce")
REVIEW = {  # as confide.review writes it
    "confide_review": 1, "digest": DIGEST, "confidence": 0.95, "cap": 10, "draws": 200, "records": [list(row) for row in ROWS],
    "types": {NASTY: {"secrets": 515151, "missed": 1, "bound": 0.0434343}, "NAME": {"secrets": 40, "missed": 0, "bound": 0.08},
              "SHY": {"secrets": 0, "missed": 0, "bound": 1.0}},
    "bound": EVIDENCE.bounds(True)[0], "bound_public": 0.0, "contradicted": False, "begun": 1, "nonce": "n0nce", "left_out": 2, "class": None,
    "outside_class": None, "bound_all": EVIDENCE.bounds(True)[0], "bound_public_all": 0.0, "unfit": "",
    "reviewers": {"alice": {"answered": 161718, "skipped": 3}, NASTY: {"answered": 41}},
    "agreement": [{"reviewers": ["alice", NASTY], "records": 41, "same": 0.9757, "kappa": 0.8181}],
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
    conservative="everything",
    recall_class=None,
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
        setting = Setting(method, "turn", policy, conservative, 1000, 1.0, mask_consistent=True, recall_class=recall_class,
                          subject=f"{policy} of /home/alice/models/m on screened")  # fmt: skip
        _certify(folder, setting, "review" in parts, "certificate" in parts)
    if "model" in parts:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")
    if "attacks" in parts:
        path = folder / "certificate.json"
        stated = json.loads(path.read_text()) if path.exists() else None
        (folder / "attacks.json").write_text(json.dumps(attacks(stated)))
    screened.mkdir(exist_ok=True)
    facts = {"certificate": {"conservative": conservative, "recall_class": recall_class}}
    for name, content in (("manifest", {**manifest(), **facts}), ("review", recounted(REVIEW, facts))):
        if name in parts:
            (screened / f"{name}.json").write_text(json.dumps(content))
    return folder


def recounted(review, manifest):
    """A review with the bounds that its records give."""
    rows = tuple(one if isinstance(one, str) else tuple(one) for one in review["records"])
    evidence = Review(rows, review["cap"], review["confidence"], review["begun"], review["nonce"])
    facts = manifest["certificate"]
    flagged = facts["conservative"] == "everything" or facts["recall_class"] is not None
    contradicted = flagged and any(row[2] for row in rows if not isinstance(row, str))
    bound, public = evidence.bounds(flagged and not contradicted)
    return {**review, "bound": bound, "bound_public": public, "contradicted": contradicted}


def _certify(folder, setting, reviewed, certificate):
    phase = "phase2" if setting.method == "jft" else "train"
    with LedgerWriter.create(
        folder / "ledger.jsonl", setting.to_plain(), [(phase, PoissonGaussian(0.05, 2.0, 40))]
    ) as writer:
        for _ in range(4):
            writer.append(PoissonGaussian(0.05, 2.0, 10), phase)
    if certificate:
        evidence = EVIDENCE if reviewed and setting.method == "crt" else None
        write(issue(read_ledger(folder / "ledger.jsonl"), 1e-5, evidence), folder / "certificate.json")


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A run with every part, in which whatever a user may name is hostile."""
    home = tmp_path_factory.mktemp("whole")
    make_run(home / "plain", "plain", parts=("model",), model=NASTY, special_tokens=[NASTY])
    return make_run(home / "a<b>'&run", policy=NASTY, model=NASTY, special_tokens=[NASTY])


@pytest.fixture(scope="session")
def make():
    return make_run


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without charts, for tests that look at words alone."""
    monkeypatch.setattr("confide.reporting.page.charts", lambda run, beside: {})


@pytest.fixture(scope="session")
def words():
    """A function from a page to what a reader sees of it."""

    def read(path):
        page = re.sub(r"<style>.*?</style>", "", path.read_text(encoding="utf-8"), flags=re.S)
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())

    return read


@pytest.fixture(scope="session")
def change():
    """A function that changes a JSON file: each name's new value, or a function of the old one."""

    def edit(path, **values):
        found = json.loads(path.read_text())
        for name, value in values.items():
            found[name] = value(found[name]) if callable(value) else value
        if path.name == "review.json" and {"records", "begun"} & values.keys() and isinstance(found["records"], list):
            with contextlib.suppress(BadInput):  # records that cannot be
                found = recounted(found, json.loads(path.with_name("manifest.json").read_text()))
        path.write_text(json.dumps(found))

    return edit


@pytest.fixture(scope="session")
def nasty():
    return NASTY
