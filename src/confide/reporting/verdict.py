"""What is to be said first: a run's folder, attacks and review in; whether its certificate holds, and why not, out.

A certificate counts only as it was recomputed a moment ago; what attacks.json says about it is held against that one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..accounting import Setting, verify
from ..accounting.guarantees import down, many, up
from ..errors import UNREADABLE, ConfideError
from ..training.options import PRIVATE

OTHER_CERTIFICATE = "the certificate that was attacked is not the present one, or does not hold"


@dataclass(frozen=True)
class Verdict:
    """`kind`: holds, broken, none or unfinished. `shared` is what of it may leave the house: a headline and reasons."""

    kind: str
    headline: str
    reasons: tuple[str, ...] = ()
    shared: tuple[str, tuple[str, ...]] = ("", ())


class _Cause(NamedTuple):
    headline: str
    reasons: tuple[str, ...]
    shared_headline: str
    shared: tuple[str, ...]


class Judged(NamedTuple):
    """The verdict, the recomputed certificate, and the attacks as they stand against it."""

    verdict: Verdict
    certificate: dict[str, Any] | None
    attacks: dict[str, Any] | None


def judge(folder: Path, method: str, attacks: dict[str, Any] | None, review: Mapping[str, Any] | None) -> Judged:
    """Contradictions first, then what is promised, then why nothing is."""
    certificate, numbers, causes = None, 0, list[_Cause]()
    if (folder / "certificate.json").exists():
        try:
            verified = verify(folder)
            certificate, numbers = verified.certificate, verified.numbers
        except (ConfideError, *UNREADABLE, RecursionError) as error:
            why = str(error) if isinstance(error, ConfideError) else "certificate.json is damaged"
            causes.append(
                _Cause(
                    "The certificate does not hold",
                    (why,),
                    "The certificate does not hold",
                    ("Verification failed; confide verify says why.",),
                )
            )
    attacks = held_against(attacks, certificate)
    if attacks and attacks["contradictions"]:
        said = tuple(attacks["contradictions"])
        headline = f"An attack contradicts {'the certificate' if certificate else 'what was promised'}"
        causes.append(_Cause(headline, said, headline, said))
    # Other methods do not rest on the routing
    if review and review.get("contradicted") and certificate and certificate["method"] == "crt":
        why = "It stands in a public record, which was trained on without noise: the certificate rests on an assumption that is false."
        causes.append(
            _Cause("A reviewer found a secret that the conservative policy is said to flag", (why,),
                   "An assumption of the certificate was refuted", ())
        )  # fmt: skip
    if causes:
        if attacks:  # what does not hold is no ceiling
            attacks = {**(held_against(attacks, None) or {}), "contradictions": attacks["contradictions"]}
        first, *others = causes
        more = [text for one in others for text in (one.headline + ".", *one.reasons)]
        more_shared = [text for one in others for text in (one.shared_headline + ".", *one.shared)]
        shared = (first.shared_headline, (*first.shared, *more_shared))
        return Judged(Verdict("broken", first.headline, (*first.reasons, *more), shared), certificate, attacks)
    if certificate is not None:
        says = "Recomputed from its ledger just now: the chain is unbroken and {} agree."
        # How many numbers agree counts the reviewed records.
        shared = ("The certificate holds", (says.format("all numbers"),))
        return Judged(
            Verdict("holds", shared[0], (says.format(f"all {numbers} numbers"),), shared), certificate, attacks
        )
    return Judged(_nothing(folder, method), None, attacks)


def _nothing(folder: Path, method: str) -> Verdict:
    if not finished(folder):
        headline, why = "Nothing is promised yet", "The run has not ended, so that there is no certificate."
        return Verdict("unfinished", headline, (why,), (headline, (why,)))
    why = f"This run has no certificate: {without_certificate(method)}."
    return Verdict("none", "Nothing is promised", (why,), ("Nothing is promised", (why,)))


def finished(folder: Path) -> bool:
    """Whether a run has ended: of all that it writes only the certificate comes after its model."""
    return (folder / "model" / "config.json").is_file()


def without_certificate(method: str) -> str:
    """Why a run of this method has no certificate."""
    if method in PRIVATE:
        return "a certificate is issued when such a run ends"
    return f"training by {method} gives none"


def held_against(attacks: dict[str, Any] | None, certificate: dict[str, Any] | None) -> dict[str, Any] | None:
    """The attacks with the ε of this certificate beside every audit, and what contradicts it.

    Ceilings that were computed from another certificate are left out, and `other` says so.
    """
    if attacks is None:
        return None
    other = _other(attacks.get("certificate"), certificate)
    found = {**attacks, "other": other}
    if other and found.get("exposure", {}).get("ceiling"):
        found["exposure"] = {**found["exposure"], "ceiling": None, "no_ceiling": OTHER_CERTIFICATE}
    audit = attacks.get("audit", {})
    parts = {} if "skipped" in audit else {name: _held(part, certificate, other) for name, part in audit.items()}
    if parts:
        found["audit"] = parts
    said = set(attacks["contradictions"])
    more = [text for part in parts.values() if part.get("says") not in said for text in _contradiction(part)]
    return {**found, "contradictions": [*attacks["contradictions"], *more]}


def _held(part: dict[str, Any], certificate: Mapping[str, Any] | None, other: str) -> dict[str, Any]:
    if "skipped" in part:
        return part
    held = {**part, "certified": _certified(part, certificate)}
    if other:
        held.pop("says", None)
        if isinstance(part.get("coins"), dict):
            held["coins"] = {**part["coins"], "ceiling": None, "no_ceiling": OTHER_CERTIFICATE}
    return held


def _certified(part: Mapping[str, Any], certificate: Mapping[str, Any] | None) -> float | None:
    """The certificate's ε for as many records as one of the audit's coins changes; None where it promises nothing for them."""
    if certificate is None or part.get("certified") is None:
        return None
    adjacency = Setting.from_plain(certificate["setting"]).adjacency
    if part.get("adjacency", adjacency) != adjacency:
        return None
    names, k = ("group", "selective", "detected-secret"), part.get("records", 1)
    promised = [one["epsilon"] for one in certificate["guarantees"] if one["name"] in names and one["k"] == k]
    if not promised or promised[0] is None:
        return None
    weakest = part["certified"] if part.get("runs", 1) != 1 else 0.0  # of several runs that were audited together
    return max(float(promised[0]), float(weakest))


def _contradiction(part: Mapping[str, Any]) -> Iterator[str]:
    bound, certified = part.get("lower_bound"), part.get("certified")
    if isinstance(bound, (int, float)) and certified is not None and bound > certified:
        yield (
            f"The audit shows an epsilon of at least {down(bound)}, but the certificate promises at most {up(certified)} for "
            f"{many(part.get('records', 1), 'changed record')}."
        )


def _other(stated: Mapping[str, Any] | None, certificate: Mapping[str, Any] | None) -> str:
    """How the certificate that was attacked differs from the present one; empty if it does not."""
    if certificate is None:
        return "" if not stated else "They were made against a certificate that is not there, or does not hold."
    main = certificate["guarantees"][0]
    if not stated:
        return "They were made before there was a certificate; attack again."
    now = {**main, "adjacency": certificate["adjacency"]["name"]}
    now |= {name: certificate[name] for name in ("unit", "sampler")}
    for name in ("name", "epsilon", "delta", "k", "adjacency", "unit", "sampler"):
        mine, theirs = now[name], stated.get(name)
        if isinstance(mine, float) and isinstance(theirs, (int, float)):
            same, shown = math.isclose(mine, theirs, rel_tol=1e-5), up(theirs)
        else:
            same, shown = mine == theirs, str(theirs)[:40]
        if not same:
            return f"They were made against another certificate ({name} {shown}); attack again."
    return ""
