"""The files of a run: paths in; what they hold, with its shape checked, out. What is damaged is said to be, never guessed at."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..accounting import Ledger, Review, Setting, read_ledger
from ..accounting.guarantees import Accounts
from ..accounting.missrate import states_its_counts
from ..attacks.lines import PARTS
from ..errors import UNREADABLE, BadInput, ConfideError
from ..plain_yaml import CONFIG, run_config
from ..rundir import read_file

NUMBER = (int, float)


def configuration(folder: Path) -> dict[str, Any]:
    """The configuration of a run; anything else is refused with the reason."""
    if not (folder / CONFIG).is_file():
        raise BadInput(f"{folder} is not a run: it holds no {CONFIG}; name a folder that confide train made")
    config = run_config(folder)
    if "method" not in config["options"]:
        raise BadInput(f"{folder / CONFIG} is damaged; without it nothing can be said about the run")
    config["options"] = {"model": "an unnamed model", **config["options"]}
    return config


def attacks_of(folder: Path, again: str) -> dict[str, Any] | None:
    """What attacks.json holds, None if there is none; `again`: the command that makes it anew."""
    path, remedy = folder / "attacks.json", f"remove it and run {again}"
    found = _json(path, remedy)
    if found is None:
        return None
    try:
        _must(found["confide_attacks"] == 1)
        _must(all(isinstance(one, str) for one in _of(found["contradictions"], list)))
        _of(found.get("shareable", []), list)
        _of(found.get("certificate") or {}, dict)
        for name in PARTS:
            _of(found.get(name, {}), dict)
        audit = found.get("audit", {})
        for part in () if "skipped" in audit else audit.values():
            _of(part, dict)
    except UNREADABLE:
        raise BadInput(f"{path} is damaged; {remedy}") from None
    return found


def read_manifest(screened: str, digest: str) -> tuple[dict[str, Any] | None, str]:
    """The manifest of the screening that the run was trained on; or None, and why."""
    path = Path(screened) / "manifest.json"
    found = _json(path, "screen the corpus again") if screened else None
    if found is None:
        return None, f"the screened corpus is not where it was ({screened}); put it back there"
    if found.get("digest") != digest:
        return None, f"{screened} now holds another screening; put the one of this run back"
    try:
        for name in ("records", "public", "private", "documents"):
            _of(found[name], int)
        for name in ("mask_only", "private_duplicates", "public_duplicates", "bad_rows"):
            _of(found.get(name, 0), int)
        for count in _of(found.get("findings", {}), dict).values():
            _of(count, int)
        for name in ("policy", "conservative"):
            _of(_of(found[name], dict)["spec"], str)
        _of(found["unit"], str)
        _of(found.get("warnings", []), list)
    except UNREADABLE:
        raise BadInput(f"{path} is damaged; screen the corpus again") from None
    return {"bad_rows": 0, "warnings": [], **found}, ""


def review_of(screened: str, digest: str, again: str) -> tuple[dict[str, Any] | None, str]:
    """The review of that screening; or None, and why. What it states is what its own counts give."""
    path, remedy = Path(screened) / "review.json", f"remove it and run {again}"
    found = _json(path, remedy) if screened else None
    if found is None:
        return None, "nobody has looked for secrets that the policy missed"
    if found.get("digest") != digest or found.get("confide_review") != 1:
        return None, "the review is about another screening"
    if "begun" not in found:
        return None, "an older confide wrote it, which counted otherwise; confide review counts it again"
    try:
        evidence = _review_shape(found)
    except UNREADABLE:
        raise BadInput(f"{path} is damaged; {remedy}") from None
    if not evidence.records:
        return None, "a review was begun, but nothing was answered"
    facts: Any = (_json(path.with_name("manifest.json"), remedy) or {}).get("certificate")
    try:
        stands = states_its_counts(found, evidence, facts)
    except UNREADABLE:
        stands = False
    if not stands:
        return (
            None,
            "review.json says something else than its own counts: it was changed; confide review counts it again",
        )
    return found, ""


def _review_shape(found: Mapping[str, Any]) -> Review:
    rows = tuple(one if isinstance(one, str) else tuple(one) for one in _of(found["records"], list))
    evidence = Review(rows, found["cap"], found["confidence"], found["begun"], found.get("nonce", ""))
    _of(found.get("left_out", 0), int)
    _of(found["bound"], NUMBER)
    for name in ("bound_public", "bound_all", "bound_public_all"):
        if found.get(name) is not None:
            _of(found[name], NUMBER)
    for count in _of(found.get("outside_class") or {}, dict).values():
        _of(count, int)
    for one in _of(found.get("types", {}), dict).values():
        _of(one["secrets"], int), _of(one["missed"], int), _of(one["bound"], NUMBER)
    for who, counts in _of(found.get("reviewers", {}), dict).items():
        _of(who, str), [_of(count, int) for count in _of(counts, dict).values()]
    for pair in _of(found.get("agreement", []), list):
        _must(len(_of(pair["reviewers"], list)) == 2)
        _of(pair["records"], int), _of(pair["same"], NUMBER), _of(pair.get("kappa") or 0, NUMBER)
    return evidence


def read_accounts(folder: Path) -> tuple[Ledger, Accounts] | None:
    """The ledger with its curves; None if there is none, or none that can be read: the verdict says why."""
    path = folder / "ledger.jsonl"
    if not path.is_file() or not path.stat().st_size:
        return None
    try:
        ledger = read_ledger(path)
        return ledger, Accounts(Setting.from_plain(ledger.setting), ledger)
    except (ConfideError, *UNREADABLE):
        return None


def read_validations(path: Path, options: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The lines of the telemetry that hold a validation or an ε; torn or damaged lines are left out."""
    if not path.is_file():
        return ()
    text = read_file(path).decode("utf-8", errors="replace")
    causal = options.get("task", "causal") == "causal"
    found = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        try:
            one = json.loads(line)
            loss, spent = (_number(one.get(name)) for name in ("validation_loss", "epsilon"))
            if loss is None and spent is None:
                continue
            kept = {name: one.get(name) for name in ("phase", "epoch", "epsilon_of")}
            kept |= {"slot": _of(one["slot"], int), "loss": loss, "epsilon": spent}
            kept |= {"delta": _number(one.get("delta")), "accuracy": _number(one.get("validation_accuracy"))}
            found.append({**kept, "perplexity": math.exp(loss) if causal and loss is not None and loss < 700 else None})
        except (*UNREADABLE, RecursionError):
            continue
    return tuple(found)


def _json(path: Path, remedy: str) -> dict[str, Any] | None:
    try:
        found = json.loads(read_file(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadInput(f"{path} is damaged; {remedy}")
    return found


def _must(right: bool) -> None:
    if not right:
        raise ValueError


def _of(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError
    return value


def _number(value: Any) -> float | None:
    if value is None:
        return None
    _must(math.isfinite(_of(value, NUMBER)))
    return float(value)
