"""What may leave the house (guarantees §7): a run's data in; the same without any private statistic, path or seed out.

The page is drawn from what comes out of here, so that a template cannot show what it was never given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from .gather import Found, Missing, Verdict

CANARY_ATTACKS = ("exposure", "audit")  # about invented secrets; nothing else of attacks.json is public
RESTS_ON_LABELS = ("bayesian",)
NOT_PUBLIC = ("seed",)
FILES = ("validation", "vocabulary_from", "screened_by_hand", "review", "tokenizer", "model")
_FOLDERS = re.compile(r"""(?<![\w<.~/])(?:~|\.{1,2}|[A-Za-z]:)?[/\\](?:[^/\\\s,;()'"]+[/\\])*(?=[^/\\\s,;()'"])""")


def shareable(found: Found) -> Found:
    """Only the certificate without evidence, the ledger, public utility and what attacks on canaries showed."""
    return replace(
        found,
        folder=Path(found.name),
        digest="",
        screened="",
        options=_options(found.options),
        verdict=_verdict(found.verdict, found.attacks),
        certificate=_certificate(found),
        ledger=found.ledger,
        validations=found.validations if _public(found) else tuple(_without_scores(one) for one in found.validations),
        utility=found.utility if _public(found) else None,
        manifest=None,
        review=None,
        attacks=_canaries_only(found),
        missing=tuple(
            _nameless(one, found) for one in found.missing if one.part in ("model", "certificate", "attacks", "audit")
        ),
        shareable=True,
    )


def without_paths(text: str, *known: str) -> str:
    """A text in which files keep their names but not their folders."""
    for folder in sorted((one for one in known if len(one) > 1), key=len, reverse=True):
        text = text.replace(folder + "/", "").replace(folder, PurePath(folder).name)
    return _FOLDERS.sub("", text)


def _known(found: Found) -> tuple[str, ...]:
    here = found.folder.resolve()
    return tuple(
        {str(found.folder), str(here), str(here.parent), str(Path.home()), str(Path.cwd()), found.screened} - {"/", "."}
    )


def _public(found: Found) -> bool:
    return found.utility is None or bool(found.utility["public"])


def _without_scores(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "loss": None, "accuracy": None, "perplexity": None}


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name in NOT_PUBLIC:
            continue
        if isinstance(value, str):
            named = PurePath(value).name if name in FILES and value.startswith(("/", "~", ".")) else value
            value = without_paths(PurePath(named).name if name in FILES[:4] else named)
        found[name] = value
    return found


def _verdict(verdict: Verdict, attacks: Mapping[str, Any] | None) -> Verdict:
    """Why a verification failed may quote a private number, and how many numbers agree counts the reviewed records."""
    if verdict.kind == "holds":
        says = "Recomputed from its ledger just now: the chain is unbroken and every number agrees."
        return replace(verdict, reasons=(says,))
    if verdict.kind != "broken":
        return verdict
    about_canaries = [without_paths(str(one)) for one in (attacks or {}).get("contradictions", [])]
    if not verdict.headline.startswith("An attack"):
        about_canaries.insert(0, "Verification failed; confide verify says why.")
    return replace(verdict, reasons=tuple(about_canaries))


def _certificate(found: Found) -> dict[str, Any] | None:
    """Without evidence, and without the bound and the guarantee that show how often the policy misses."""
    if found.certificate is None:
        return None
    kept = {**found.certificate, "evidence": None, "bounds": None}
    kept["guarantees"] = [one for one in kept["guarantees"] if one["name"] not in RESTS_ON_LABELS]
    kept["assumptions"] = [one for one in kept["assumptions"] if one["id"] != "evidence"]
    kept["left_out"] = len(kept["guarantees"]) < len(found.certificate["guarantees"])
    return dict(_scrubbed(kept, _known(found)))


def _canaries_only(found: Found) -> dict[str, Any] | None:
    if found.attacks is None:
        return None
    allowed = [name for name in CANARY_ATTACKS if name in found.attacks.get("shareable", ())]
    kept = {
        name: found.attacks.get(name)
        for name in ("confide_attacks", "confide", "method", "certificate", "contradictions", *allowed)
    }
    return dict(
        _scrubbed(
            {name: part for name, part in kept.items() if part is not None or name == "certificate"}, _known(found)
        )
    )


def _scrubbed(value: Any, known: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        return {name: _scrubbed(inner, known) for name, inner in value.items()}
    if isinstance(value, list):
        return [_scrubbed(inner, known) for inner in value]
    return without_paths(value, *known) if isinstance(value, str) else value


def _nameless(one: Missing, found: Found) -> Missing:
    known = _known(found)
    return Missing(one.part, without_paths(one.why, *known), without_paths(one.command, *known))
