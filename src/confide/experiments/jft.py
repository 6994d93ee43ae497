"""The JFT paper's Tables 2 to 4 and 6 to 8, and Figures 2 to 4, as descriptions: a `Study` each goes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .jobs import UNTRAINED
from .scales import ABCD, SST2, WIKITEXT
from .study import Check, Row, Study

DETECTORS = ("low-entity", "high-entity", "low-contextual", "high-contextual")
WRITTEN = {WIKITEXT: "WikiText-2", ABCD: "ABCD"}
MODEL = {WIKITEXT: "pretrained", ABCD: "pretrained", SST2: "encoder"}
NAMES = {**WRITTEN, SST2: "SST-2"}
HEADED = ("redacted", "epsilon", "paper_epsilon", "ppl", "bits", "class_accuracy")
ONLY_CAUGHT = "The ε of jft holds for secrets that the first phase's detector caught; about missed ones it promises nothing unless phase 1 is noised."


def _published(of: str, column: str, *rows: tuple[Any, ...]) -> tuple[dict[str, Any], ...]:
    """What the paper prints of a corpus: names, and perplexity or accuracy, ε, and the share of tokens that is redacted."""
    model = "RoBERTa" if column == "class_accuracy" else "GPT-2"
    named = ("row", column, "paper_epsilon", "redacted")
    found = [dict(zip(named, (f"{model}, {name}, {of}", *numbers), strict=False)) for name, *numbers in rows]
    return tuple({key: value for key, value in one.items() if value is not None} for one in found)


def _with(detector: str) -> dict[str, str]:
    return {"policy": detector, "unit": "document", "conservative": "everything"}


def _table_2(corpus: str) -> tuple[Row, ...]:
    of, model = NAMES[corpus], MODEL[corpus]
    words = ({"special_tokens": "SYS:,USR:"},) if corpus in WRITTEN else ()
    return (
        *((Row(f"no fine-tuning, {of}", corpus, model, UNTRAINED, _with("low-entity")),) if corpus in WRITTEN else ()),
        Row(f"plain, {of}", corpus, model, "plain", _with("low-entity")),
        Row(f"dpsgd, {of}", corpus, model, "dpsgd", _with("low-entity")),
        *(Row(f"dpsgd +spe, {of}", corpus, model, "dpsgd", _with("low-entity"), one) for one in words),
        *(
            Row(f"{method} {detector}, {of}", corpus, model, method, _with(detector))
            for detector in DETECTORS
            for method in ("redacted", "jft")
        ),
    )


Named = tuple[str, str]  # a row of ours, and of the paper's table
PLAIN, DPSGD = ("plain", "No-DP"), ("dpsgd", "DPSGD")


def _detected(method: str, detector: str) -> Named:
    return f"{method} {detector}", f"{'JFT' if method == 'jft' else method} {detector}"


def _orders(
    published: tuple[Mapping[str, Any], ...], of: str, pairs: Iterable[tuple[Named, Named]]
) -> tuple[Check, ...]:
    """For each pair of rows the order that the paper's own numbers have."""
    found = []
    for one, other in pairs:
        numbers = {}
        for ours, theirs in (one, other):
            row = next(row for row in published if row["row"].endswith(f", {theirs}, {of}"))
            column = "class_accuracy" if "class_accuracy" in row else "ppl"
            numbers[ours] = row[column]
        low, high = sorted(numbers, key=lambda name: numbers[name])
        better, worse = (high, low) if column == "class_accuracy" else (low, high)
        found.append(
            Check("below", (f"{low}, {of}", f"{high}, {of}"), column, f"{better} is better than {worse} ({of})")
        )
    return tuple(found)


CONTEXT = "Perplexities do not compare with the published ones: models and texts differ, and ours see at most 64 tokens of a text at once."
FEW_STEPS = (
    "On two cores these corpora are small parts, and DP-SGD and JFT's second phase take a handful of noised steps on them (above): where DP-SGD learns nothing from so few, "
    "beating it is beating a model that was not fine-tuned. Of DP-SGD on SST-2 the learning rate alone was searched for (the table of the search), with few steps. The published share redacted is of tokens."
)
PUBLISHED_2 = (
        *_published(
            "WikiText-2", "ppl", ("no fine-tuning", 30.08), ("No-DP", 20.48), ("DPSGD", 27.05, 2.58), ("DPSGD +spe", 30.32, 2.58),
            ("redacted low-entity", 22.50, None, 0.113), ("JFT low-entity", 21.86, 2.58, 0.113), ("redacted high-entity", 24.32, None, 0.164), ("JFT high-entity", 22.55, 2.58, 0.164),
            ("redacted low-contextual", 37.90, None, 0.348), ("JFT low-contextual", 25.62, 2.58, 0.348), ("redacted high-contextual", 54.29, None, 0.45), ("JFT high-contextual", 27.19, 1.96, 0.45),
        ),
        *_published(
            "ABCD", "ppl", ("no fine-tuning", 13.60), ("No-DP", 4.96), ("DPSGD", 8.31, 2.65), ("DPSGD +spe", 17.75, 2.71),
            ("redacted low-entity", 6.98, None, 0.027), ("JFT low-entity", 6.09, 2.71, 0.027), ("redacted high-entity", 7.32, None, 0.031), ("JFT high-entity", 6.25, 2.71, 0.031),
            ("redacted low-contextual", 28.28, None, 0.223), ("JFT low-contextual", 8.80, 2.71, 0.223), ("redacted high-contextual", 65.45, None, 0.286), ("JFT high-contextual", 12.93, 2.71, 0.286),
        ),
        *_published(
            "SST-2", "class_accuracy", ("no fine-tuning", 0.5092), ("No-DP", 0.948), ("DPSGD", 0.8612, 2.41),
            ("redacted low-entity", 0.9358, None, 0.0179), ("JFT low-entity", 0.9209, 2.06, 0.0179), ("redacted high-entity", 0.9358, None, 0.0301), ("JFT high-entity", 0.9220, 2.12, 0.0301),
            ("redacted low-contextual", 0.9255, None, 0.2219), ("JFT low-contextual", 0.9243, 2.17, 0.2219), ("redacted high-contextual", 0.9186, None, 0.3813), ("JFT high-contextual", 0.9117, 2.17, 0.3813),
        ),
    )  # fmt: skip
TABLE_2 = Study(
    "jft-table2", "JFT, Table 2", "utility of redaction, JFT and DP-SGD, with four detectors",
    "JFT beats DP-SGD with the entity detectors everywhere, and where more is redacted on some corpora; it improves on redaction the more, the more was redacted (on SST-2 it is below redaction).",
    tuple(row for corpus in NAMES for row in _table_2(corpus)), HEADED,
    notes=f"{ONLY_CAUGHT} {FEW_STEPS} {CONTEXT} On SST-2 redaction trains all weights, and JFT, as DP-SGD, adapters of rank 8.",
    checks=(
        *(check for of in NAMES.values() for check in _orders(PUBLISHED_2, of, (
            *((_detected("jft", one), DPSGD) for one in DETECTORS), *((_detected("jft", one), _detected("redacted", one)) for one in DETECTORS),
            (PLAIN, _detected("jft", "low-entity")), (PLAIN, _detected("redacted", "low-entity")),
        ))),
        *(Check("exceeds", (f"jft {one}, SST-2", "dpsgd, SST-2"), "class_accuracy", f"jft {one} beats DP-SGD on SST-2 by two points", 0.02, ours=True) for one in DETECTORS),
        *(Check("exceeds", (f"jft {one}, SST-2", "plain, SST-2"), "class_accuracy", f"jft {one} is at most three points below training without privacy on SST-2", -0.03, ours=True) for one in DETECTORS),
    ),
    published=PUBLISHED_2,
)  # fmt: skip
LIGHT = {"phase1": "noised", "phase1_noise": 0.5, "epsilon": None, "noise": 1.0}
HEAVIER = ("jft high-entity, noised first phase", "JFT high-entity, light noise")
PUBLISHED_3 = (
    *_published("WikiText-2", "ppl", ("DPSGD", 27.05, 2.58), ("JFT high-entity", 22.55, 2.58), ("JFT high-entity, light noise", 25.21), ("JFT high-entity, light conservative noise", 26.59, 3.03)),
    *_published("SST-2", "class_accuracy", ("DPSGD", 0.8612, 2.41), ("JFT high-entity", 0.9220, 2.12), ("JFT high-entity, light noise", 0.8933), ("JFT high-entity, light conservative noise", 0.8922, 0.43)),
)  # fmt: skip
TABLE_3 = Study(
    "jft-table3", "JFT, Table 3", "a lightly noised first phase", "it costs little, and gives missed secrets a guarantee.",
    tuple(
        row for corpus in (WIKITEXT, SST2) for row in (
            Row(f"jft high-entity, {NAMES[corpus]}", corpus, MODEL[corpus], "jft", _with("high-entity")),
            Row(f"jft high-entity, noised first phase, {NAMES[corpus]}", corpus, MODEL[corpus], "jft", _with("high-entity"), LIGHT),
            Row(f"dpsgd, {NAMES[corpus]}", corpus, MODEL[corpus], "dpsgd", _with("low-entity")),
        )
    ),
    HEADED, notes=f"{ONLY_CAUGHT} {FEW_STEPS} The paper's ε of a noised first phase are heuristic intervals, by its missing rates: 2.73 to 2.92 on WikiText-2, 0 to 0.43 on SST-2.",
    checks=tuple(check for of in ("WikiText-2", "SST-2") for check in _orders(PUBLISHED_3, of, ((HEAVIER, DPSGD), (HEAVIER, _detected("jft", "high-entity"))))),
    published=PUBLISHED_3,
)  # fmt: skip
HAND = ("jft, screened by hand", "JFT, screened by hand")
FEW = {WIKITEXT: 10, SST2: 100}  # documents that a person has screened


def _by_hand(name: str, number: int, title: str, claim: str, few: bool, published: tuple[dict[str, Any], ...]) -> Study:
    return Study(
        name, f"JFT, Table {number}", title, claim,
        tuple(
            row for corpus, size in FEW.items() for row in (
                Row(f"dpsgd, {NAMES[corpus]}", corpus, MODEL[corpus], "dpsgd", _with("high-entity"),
                    {"private_batch_size": size // 2} if few else {}, documents=size if few else None),
                Row(f"redacted alone, {size} documents, {NAMES[corpus]}", corpus, MODEL[corpus], "redacted", _with("high-contextual"), documents=size),
                Row(f"jft, screened by hand, {NAMES[corpus]}", corpus, MODEL[corpus], "jft", _with("high-entity"),
                    {"phase1": "hand-screened", "screened_by_hand": size} | ({"private_batch_size": size // 2} if few else {}),
                    documents=size if few else None),
            )
        ),
        HEADED,
        checks=tuple(check for corpus, size in FEW.items() for check in _orders(published, NAMES[corpus], (
            (HAND, DPSGD), (HAND, (f"redacted alone, {size} documents",) * 2), (DPSGD, (f"redacted alone, {size} documents",) * 2),
        ))),
        notes=f"In a person's stead the strictest detector screens the subset, which no person has looked at. The share redacted is that of the whole text, not of the subset. {FEW_STEPS}",
        published=published,
    )  # fmt: skip


PUBLISHED_6 = (
        *_published("WikiText-2", "ppl", ("CRT low-entity", 28.20, 2.19), ("JFT low-entity", 21.86, 2.58), ("CRT high-entity", 28.47, 1.38), ("JFT high-entity", 22.55, 2.58),
                    ("CRT low-contextual", 28.87, 0.69), ("JFT low-contextual", 25.62, 2.58), ("CRT high-contextual", 29.13, 0.47), ("JFT high-contextual", 27.19, 1.96)),
        *_published("SST-2", "class_accuracy", ("CRT low-entity", 0.8739, 2.22), ("JFT low-entity", 0.9209, 2.06), ("CRT high-entity", 0.8727, 2.22), ("JFT high-entity", 0.9220, 2.12),
                    ("CRT low-contextual", 0.8567, 2.22), ("JFT low-contextual", 0.9243, 2.17), ("CRT high-contextual", 0.8601, 2.33), ("JFT high-contextual", 0.9117, 2.17)),
    )  # fmt: skip
TABLE_6 = Study(
    "jft-table6", "JFT, Table 6", "JFT against CRT", "JFT predicts better than CRT with every detector; their ε do not compare.",
    tuple(
        Row(f"{method} {detector}, {NAMES[corpus]}", corpus, MODEL[corpus], method, _with(detector))
        for corpus in (WIKITEXT, SST2) for detector in DETECTORS for method in ("crt", "jft")
    ),
    HEADED,
    notes=f"{ONLY_CAUGHT} {FEW_STEPS} {CONTEXT} Nothing is public to crt here, since a detector of names cannot say of a line that it holds no secret: all of its steps are noised, as those of DP-SGD are. "
    "The paper's ε of CRT are Bayesian ones, another quantity than ours beside them.",
    checks=tuple(check for of in ("WikiText-2", "SST-2") for check in _orders(PUBLISHED_6, of, (
        (_detected("jft", one), (f"crt {one}", f"CRT {one}")) for one in DETECTORS
    ))),
    published=PUBLISHED_6,
)  # fmt: skip
TABLE_7 = Study(
    "jft-table7", "JFT, Table 7", "batch size and epochs of DP-SGD", "more epochs help, less and less; of larger batches the paper says so, its numbers do not.",
    tuple(
        Row(f"dpsgd, batch {batch}, {epochs} epochs", WIKITEXT, "pretrained", "dpsgd", _with("low-entity"), {"private_batch_size": batch, "epochs": epochs})
        for batch, epochs in ((64, 2), (128, 2), (128, 4))
    ),
    HEADED,
    checks=(Check("below", ("dpsgd, batch 128, 4 epochs", "dpsgd, batch 128, 2 epochs"), "ppl", "more epochs help"),),
    published=_published("WikiText-2", "ppl", ("DPSGD, batch 256, 200 epochs", 27.04), ("DPSGD, batch 512, 200 epochs", 27.05), ("DPSGD, batch 1024, 200 epochs", 27.18),
                         ("DPSGD, batch 1024, 600 epochs", 27.01), ("DPSGD, batch 1024, 10 epochs", 28.84)),
)  # fmt: skip


# Of a canary that the detector finds, or overlooks; digits are all that counts as a secret
CAUGHT, OVERLOOKED = "", ",policy=missed"
SPACE = "format=My ID is {digits:5}."


def _canaries(
    name: str,
    number: int,
    spec: str,
    title: str,
    claim: str,
    methods: Mapping[str, tuple[str, str | float]],
    checks: tuple[Check, ...],
) -> Study:
    """`methods`: of each row, its method and what the detector does with canaries: a part of their description, or the share it misses."""
    rows = []
    for row, (method, found) in methods.items():
        screen: dict[str, Any] = {
            "policy": "digits",
            "unit": "document",
            "conservative": "everything",
            "canaries": f"{spec}{found if isinstance(found, str) else ''},{SPACE}",
        }
        screen |= {} if isinstance(found, str) else {"missed": found}
        screen |= (
            {"dedup": "off"} if method in ("redacted", "jft") else {}
        )  # all copies of a canary stay; dedup is a part of crt
        rows.append(
            Row(row, WIKITEXT, "pretrained", method, screen, LIGHT if "light noise" in row else {}, size="small")
        )
    return Study(
        name, f"JFT, Figure {number}", title, claim, tuple(rows), ("epsilon", "ppl", "exposure_max", "exposure_mean"), x="ppl", y="exposure_mean", attack=("exposure",), checks=checks,
        notes=f"{ONLY_CAUGHT} Canaries have five digits here, one of 10^5 candidates (at most 16.6 bits): a model of this size ranks them in a tenth of the time. A recall of 0.4 is a coin for each. Each point is a model at its end; the paper draws checkpoints, and a first phase with light noise by itself besides.",
    )  # fmt: skip


ONE = "sdp,secret=34175"
EVERY = {
    "plain": ("plain", CAUGHT),
    "dpsgd": ("dpsgd", CAUGHT),
    "redacted, missed": ("redacted", OVERLOOKED),
    "jft, missed": ("jft", OVERLOOKED),
}
FIGURES = (
    _canaries(
        "jft-fig2", 2, ONE, "one canary, ten times",
        "without privacy the canary is exposed, and where the detector misses it; where it is caught, or the first phase lightly noised, it is not.",
        {
            **EVERY, "redacted, caught": ("redacted", CAUGHT), "jft, caught": ("jft", CAUGHT),
            "jft with light noise, missed": ("jft", OVERLOOKED), "crt, missed": ("crt", OVERLOOKED),
        },
        (
            Check("below", ("jft, caught", "jft, missed"), "exposure_mean", "a caught canary is exposed less than a missed one"),
            Check("below", ("jft with light noise, missed", "jft, missed"), "exposure_mean", "light noise protects the missed canary"),
            Check("below", ("redacted, caught", "redacted, missed"), "exposure_mean", "the same of redaction alone"),
            Check("below", ("dpsgd", "plain"), "exposure_mean", "DP-SGD exposes the canary less than training without privacy"),
            Check("below", ("crt, missed", "plain"), "exposure_mean", "crt, which the paper's figure does not have, exposes the canary less, though it was missed", ours=True),
            Check("below", ("jft, caught", "plain"), "exposure_mean", "jft exposes a caught canary less than training without privacy"),
        ),
    ),
    _canaries(
        "jft-fig3", 3, f"{ONE},copies=1", "one canary, once", "exposure is low (below 3) for every model.", EVERY,
        tuple(Check("under", (row,), "exposure_mean", f"exposure is below 3 ({row})", 3.0) for row in EVERY),
    ),
    _canaries(
        "jft-fig4", 4, "jft", "ten canaries, once each, by the detector's recall", "exposure is low for every model, lower with higher recall.",
        {
            "plain": ("plain", 0.0), "dpsgd": ("dpsgd", 0.0), "redacted, recall 1": ("redacted", 0.0), "redacted, recall 0.4": ("redacted", 0.6),
            "jft, recall 1": ("jft", 0.0), "jft, recall 0.4": ("jft", 0.6), "jft with light noise, recall 0.4": ("jft", 0.6),
        },
        (
            Check("below", ("jft, recall 1", "jft, recall 0.4"), "exposure_mean", "exposure is lower with higher recall"),
            Check("below", ("redacted, recall 1", "redacted, recall 0.4"), "exposure_mean", "the same of redaction alone"),
            Check("below", ("jft with light noise, recall 0.4", "plain"), "exposure_mean", "light noise exposes canaries less than training without privacy"),
        ),
    ),
)  # fmt: skip
TABLE_4 = _by_hand(
    "jft-table4",
    4,
    "a first phase on a few documents that a person has screened",
    "even a few of them help: JFT beats DP-SGD everywhere.",
    few=False,
    published=(
        *_published("WikiText-2", "ppl", ("DPSGD", 27.05), ("redacted alone, 10 documents", 28.06), ("JFT, screened by hand", 26.72)),
        *_published("SST-2", "class_accuracy", ("DPSGD", 0.8612), ("redacted alone, 100 documents", 0.8888), ("JFT, screened by hand", 0.9083)),
    ),
)  # fmt: skip
TABLE_8 = _by_hand(
    "jft-table8", 8, "few documents altogether", "redaction alone is best; DP-SGD learns nothing from so few.", few=True,
    published=(
        *_published("WikiText-2", "ppl", ("DPSGD", 30.08), ("redacted alone, 10 documents", 28.06), ("JFT, screened by hand", 28.15)),
        *_published("SST-2", "class_accuracy", ("DPSGD", 0.5677), ("redacted alone, 100 documents", 0.8888), ("JFT, screened by hand", 0.8853)),
    ),
)  # fmt: skip
STUDIES = (TABLE_2, TABLE_3, TABLE_4, TABLE_6, TABLE_7, TABLE_8, *FIGURES)
