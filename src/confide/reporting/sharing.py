"""What may leave the house (guarantees §7): a run's data in; the same without any private statistic, path or seed out.

One rule beside it: numbers of a model that no certificate covers are withheld, wherever it is shown. The page is drawn from
what comes out of here, so that a template cannot show what it was never given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from ..policies.loading import last_component, policy_name
from .gather import Found, Missing

CANARY_ATTACKS = ("exposure", "audit")  # about invented secrets; nothing else of attacks.json is public
RESTS_ON_LABELS = ("bayesian",)
OPTIONS = (
    "model", "method", "task", "vocabulary_size", "from_scratch", "lora", "max_length", "epochs", "batch_size", "private_batch_size",
    "microbatch", "optimizer", "learning_rate", "private_learning_rate", "schedule", "private_schedule", "warmup", "momentum",
    "weight_decay", "dropout", "public_clip", "epsilon", "delta", "noise", "clip_norm", "clipping", "reduction", "ratio", "order",
    "mask_records", "ignore_mask", "fill_masks", "assistant_only", "variant", "segments", "state_noise", "state_clip", "phase1", "phase1_epochs",
    "phase1_noise", "tuning_runs", "validate_on", "validation_share", "keep", "precision",
)  # fmt: skip
_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_ARGUMENT = re.compile(r"\b([A-Za-z][\w.-]+:)(?=\S)[^,()\n]*[/\\]")  # known:FOLDER/FILE
_FOLDERS = re.compile(r"""(?<![\w<.~/])(?:~|\.{1,2}|[A-Za-z]:)?[/\\](?:[^/\\\s,;()'"]+[/\\])*(?=[^/\\\s,;()'"])""")


def shareable(found: Found) -> Found:
    """Only the certificate without evidence, the ledger, public utility and what attacks on canaries showed."""
    names = _names(found)
    headline, reasons = found.verdict.shared
    public = found.holds and found.utility is not None and bool(found.utility["public"])
    return replace(
        found,
        folder=Path(found.name),
        digest="",
        screened="",
        options={name: _option(name, found.options[name]) for name in OPTIONS if name in found.options},
        verdict=replace(
            found.verdict, headline=headline, reasons=tuple(_scrubbed(one, names) for one in reasons), shared=("", ())
        ),
        certificate=_certificate(found, names),
        ledger=found.ledger if found.holds else None,
        validations=tuple(one if public else _without_scores(one) for one in found.validations) if found.holds else (),
        utility=found.utility if public else None,
        manifest=None,
        review=None,
        attacks=_canaries_only(found, names),
        warnings=(),
        missing=tuple(
            Missing(one.part, _scrubbed(one.why, names), _scrubbed(one.command, names))
            for one in found.missing
            if one.part in ("model", "certificate", "attacks", "audit")
        ),
        shareable=True,
    )


def without_paths(text: str, *known: str) -> str:
    """A text in which files keep their names but not their folders."""
    for folder in sorted((one for one in known if len(one) > 1), key=len, reverse=True):
        text = text.replace(folder + "/", "").replace(folder, PurePath(folder).name)
    return _FOLDERS.sub("", _ARGUMENT.sub(r"\1", text))


def model_name(model: str) -> str:
    """A model's name on the hub, or the last component of its folder."""
    return model if _HUB.fullmatch(model) and not Path(model).exists() else last_component(model)


def _names(found: Found) -> dict[str, str]:
    """What is written in place of names that may hold folders, the longest first."""
    here = found.folder.resolve()
    names = {str(one): one.name for one in (here, here.parent, Path.home(), Path.cwd(), Path(found.screened))}
    names[str(found.folder)] = here.name
    model = str(found.options["model"])
    names[model] = model_name(model)
    if found.certificate is not None:
        setting = found.certificate["setting"]
        names |= {spec: policy_name(spec) for spec in (setting["policy"], setting["conservative"])}
    return {name: names[name] for name in sorted(names, key=len, reverse=True) if len(name) > 1 and name != names[name]}


def _option(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value if isinstance(value, (int, float)) or value is None else "–"
    return model_name(value) if name == "model" else without_paths(value)


def _without_scores(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "loss": None, "accuracy": None, "perplexity": None}


def _certificate(found: Found, names: Mapping[str, str]) -> dict[str, Any] | None:
    """Without evidence, and without the bound and the guarantee that show how often the policy misses; nothing that is refuted."""
    if found.certificate is None or not found.holds:
        return None
    kept = {**found.certificate, "evidence": None, "bounds": None}
    kept["guarantees"] = [one for one in kept["guarantees"] if one["name"] not in RESTS_ON_LABELS]
    kept["assumptions"] = [one for one in kept["assumptions"] if one["id"] != "evidence"]
    kept["left_out"] = len(kept["guarantees"]) < len(found.certificate["guarantees"])
    return dict(_scrubbed(kept, names))


def _canaries_only(found: Found, names: Mapping[str, str]) -> dict[str, Any] | None:
    if found.attacks is None or not found.holds:
        return None
    allowed = [name for name in CANARY_ATTACKS if name in found.attacks.get("shareable", ())]
    keys = ("confide_attacks", "confide", "method", "certificate", "contradictions", "other", *allowed)
    return dict(_scrubbed({name: found.attacks[name] for name in keys if name in found.attacks}, names))


def _scrubbed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _scrubbed(inner, names) for name, inner in value.items()}
    if isinstance(value, list):
        return [_scrubbed(inner, names) for inner in value]
    if not isinstance(value, str):
        return value
    for name, public in names.items():
        value = value.replace(name + "/", "") if name.startswith("/") else value
        value = value.replace(name, public)
    return without_paths(value)
