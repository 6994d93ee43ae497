"""What a run's folder holds: a folder in; plain data out, with every missing part named beside the command that makes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..accounting import Ledger
from ..accounting.ceilings import Ceilings
from ..accounting.events import to_plain
from ..accounting.guarantees import Accounts
from ..errors import ConfideError
from ..purging import PURGED
from ..training.options import PRIVATE
from . import reading
from .commands import VALIDATED_BY, command, resume
from .misses import warnings_of
from .verdict import Verdict, finished, judge, without_certificate

CURVE_GROUPS = (1, 2, 3, 5)
MOST_SIBLINGS = 40
RATES = np.geomspace(1e-4, 1, 241)


class Missing(NamedTuple):
    """A part that is not there: what it would show, and how to get it."""

    part: str
    why: str
    command: str


@dataclass(frozen=True)
class Found:
    """A run as plain data; parts that do not exist are None or empty. A certificate that does not verify does not exist."""

    name: str
    folder: Path
    method: str
    options: dict[str, Any]
    version: str
    digest: str
    screened: str
    verdict: Verdict
    certificate: dict[str, Any] | None
    ledger: dict[str, Any] | None
    curves: tuple[dict[str, Any], ...]
    ceiling: tuple[tuple[float, float], ...]
    validations: tuple[dict[str, Any], ...]
    utility: dict[str, Any] | None
    manifest: dict[str, Any] | None
    review: dict[str, Any] | None
    attacks: dict[str, Any] | None
    warnings: tuple[str, ...]
    missing: tuple[Missing, ...]
    shareable: bool = False

    @property
    def holds(self) -> bool:
        return self.verdict.kind == "holds"

    @property
    def main(self) -> dict[str, Any] | None:
        """The first guarantee that has an ε, if the certificate holds: the one without a condition wherever there is one."""
        stated = self.certificate["guarantees"] if self.certificate is not None and self.holds else []
        finite = [one for one in stated if one["epsilon"] is not None and one["name"] != "detected-secret"]
        return next(iter(finite), None)

    @property
    def condition(self) -> str:
        """For which secrets only the main guarantee holds; empty if for all of them."""
        if self.main is None or self.certificate is None:
            return ""
        if self.main["name"] == "selective":
            return "not comparable with a confidentiality ε"
        if self.main["name"] == "caught-secret":
            return "only for secrets that the redaction caught; without that condition there is no bound"
        if self.certificate["method"] == "crt" and self.certificate["setting"]["conservative"] != "everything":
            return "only for secrets that a policy flags"
        return ""


def gather(folder: str | Path, *, curves: bool = True) -> Found:
    """Read a run and verify its certificate now. Without `curves` it takes less time, and is as sure."""
    folder = Path(folder)
    config = reading.configuration(folder)
    options, method = config["options"], str(config["options"]["method"])
    digest, screened = str(config.get("digest", "")), str(config.get("screened", ""))
    attack, review_again = command("attack", folder), command("review", screened)
    manifest, no_manifest = reading.read_manifest(screened, digest)
    review, no_review = reading.review_of(screened, digest, review_again)
    verdict, certificate, attacks = judge(folder, method, reading.attacks_of(folder, attack), review)
    accounts = reading.read_accounts(folder)
    validations = reading.read_validations(folder / "telemetry.jsonl", options)
    if verdict.kind == "broken":  # an ε that nothing supports is none
        validations = tuple({**one, "epsilon": None} for one in validations)
    missing = [
        *_missing_parts(folder, method, certificate is None and verdict.kind != "broken"),
        *([] if manifest else [Missing("corpus", no_manifest, "")]),
        *([] if review else [Missing("review", no_review, review_again)]),
        *_missing_attacks(attacks, attack, (folder / PURGED).exists()),
    ]
    found = Found(
        name=folder.resolve().name,
        folder=folder,
        method=method,
        options=options,
        version=str(config.get("confide", "")),
        digest=digest,
        screened=screened,
        verdict=verdict,
        certificate=certificate,
        ledger=None if accounts is None else _plain_ledger(accounts[0]),
        curves=(),
        ceiling=(),
        validations=validations,
        utility=_utility(validations, options),
        manifest=manifest,
        review=review,
        attacks=attacks,
        warnings=tuple(warnings_of(review, options)),
        missing=tuple(missing),
    )
    if not curves or certificate is None or not found.holds or accounts is None:
        return found
    return replace(found, curves=_curves(accounts[1], float(certificate["delta"])), ceiling=_ceiling(accounts[1]))


def siblings(found: Found) -> tuple[list[Found], list[tuple[str, list[str]]]]:
    """Other runs beside it on the very same screened records: those whose utility compares, and those with why it does not."""
    beside, left = [], []
    here = found.folder.resolve()
    for config in sorted(here.parent.glob("*/config.yaml"))[:MOST_SIBLINGS]:
        if config.parent == here:
            continue
        try:
            if str(reading.configuration(config.parent).get("digest", "")) != found.digest:
                continue
            other = gather(config.parent, curves=False)
        except ConfideError:
            continue
        if other.utility is not None:
            differ = differing(found, other)
            if differ:
                left.append((other.name, differ))
            else:
                beside.append(other)
    return beside, left


def differing(one: Found, other: Found) -> list[str]:
    """The options in which two runs differ so that their utilities do not compare."""
    return [name.replace("_", " ") for name in VALIDATED_BY if one.options.get(name) != other.options.get(name)]


def _missing_parts(folder: Path, method: str, uncertified: bool) -> list[Missing]:
    again = resume(folder)
    if not finished(folder):
        return [Missing("model", "the run was interrupted before it ended", again)]
    if not uncertified:
        return []
    how = (
        again
        if method in PRIVATE
        else "confide train SCREENED --model MODEL --method crt --epsilon 2 --delta 1e-5 -o NEW_RUN"
    )
    return [Missing("certificate", without_certificate(method), how)]  # fmt: skip


def _missing_attacks(attacks: Mapping[str, Any] | None, attack: str, purged: bool) -> list[Missing]:
    if attacks is None and purged:
        return [Missing("attacks", "the run was purged, and with it what attacks may have found", "")]
    if attacks is None:
        return [Missing("attacks", "nobody has attacked this model yet", attack)]
    if "skipped" in attacks.get("audit", {}).get("black_box", {"skipped": ""}):
        why = "no canaries with coins were planted, so that no lower bound can be measured on the model itself; screen with them, then train and attack again"
        return [Missing("audit", why, "confide screen CORPUS --policy POLICY --canaries audit -o NEW_FOLDER")]
    return []


def _plain_ledger(ledger: Ledger) -> dict[str, Any]:
    def rows(entries: Sequence[Any]) -> list[dict[str, Any]]:
        return [{"phase": phase, **to_plain(event)} for phase, event in entries]

    return {"length": ledger.length, "head": ledger.head, "planned": rows(ledger.planned), "spent": rows(ledger.spent)}


def _curves(accounts: Accounts, delta: float) -> tuple[dict[str, Any], ...]:
    """δ(ε) for one secret and for small groups; nothing where no finite curve exists."""
    found = []
    first = accounts.setting.k_missed
    for k in [first, *(k for k in CURVE_GROUPS if k > first and k in accounts.groups)]:
        try:
            curve = accounts.curve(k, accounts.phase)
            top = curve.epsilon(max(delta / 100, 1e-9))
        except ConfideError:
            continue
        if math.isfinite(top) and top < 200:
            epsilons = np.linspace(0, top, 81)
            found.append({"k": k, "epsilons": epsilons.tolist(), "deltas": curve.deltas(epsilons).tolist()})
    return tuple(found)


def _ceiling(accounts: Accounts) -> tuple[tuple[float, float], ...]:
    """The largest true-positive rate at many false-positive rates: enough of them to draw what is impossible, and no more."""
    try:
        return tuple(zip(RATES.tolist(), Ceilings(accounts.main).tpr(RATES).tolist(), strict=True))
    except ConfideError:
        return ()


def _utility(validations: Sequence[dict[str, Any]], options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The validation of the model that was kept."""
    measured = [one for one in validations if one["loss"] is not None]
    if not measured:
        return None
    kept = measured[-1]
    if options.get("keep") == "best":
        kept = min((one for one in measured if one["phase"] == kept["phase"]), key=lambda one: float(one["loss"]))
    public = options.get("validate_on", "unflagged") != "all"
    return {
        **kept,
        "public": public,
        "on": "held-out public records" if public else "all validation records, flagged ones too",
    }
