"""Verification: a certificate and its ledger in, the first contradictions out. No data, no model, no trust needed.

A certificate is a pure function of its ledger, its δ and its evidence, so that checking it means making it again and
comparing every leaf. What this cannot see is whether the run did what its ledger says.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadInput, Contradiction, Refused
from ..plain_yaml import CONFIG, run_config
from ..rundir import model_files, read_file
from .agreement import disagreements
from .certificate import VERSION, evidence_from_plain, issue
from .events import check_number, short
from .ledger import Ledger, read_ledger

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Verified:
    """A certificate that holds, and how much was checked."""

    certificate: dict[str, Any]
    numbers: int
    ledger_length: int
    model: bool = False  # whether the model beside it was compared with those that the ledger names


def verify(path: str | Path, ledger_path: str | Path | None = None) -> Verified:
    """Recompute a certificate (a file, or a run directory that holds one) from the ledger beside it.

    *Formal guarantees.* Returns only if the ledger's chain is unbroken, its length and head are those of the
    certificate, and every number, sentence and assumption is what this confide computes (numbers to one in a million);
    and, of a run directory, no option in its configuration says something else, and its model's files are those that
    the ledger names, if it names any.
    Otherwise raises `Contradiction` with the reasons, or `BadInput` for what cannot be read.
    """
    path, folder = Path(path), None
    if path.is_dir():
        folder, path = path, path / "certificate.json"
        if not path.exists():
            raise BadInput(
                f"{folder} holds no certificate.json: one is issued when a run of crt, dpsgd, jft or sdp ends; baselines, which add no noise, never have one"
            )
    stated = load(path)
    chain = stated.get("ledger")
    if not isinstance(chain, Mapping) or not isinstance(chain.get("length"), int):
        raise BadInput(f"{path}: 'ledger' does not say how long the ledger is, so that nothing can be verified")
    ledger_path = Path(ledger_path or path.with_name("ledger.jsonl"))
    if ledger_path.is_file() and ledger_path.stat().st_size == 0:
        raise Contradiction(f"the ledger {ledger_path} is empty: its entries were cut off")
    with _named(ledger_path):
        ledger = read_ledger(ledger_path)
    if chain["length"] != ledger.length:
        what = "entries were cut off" if ledger.length < chain["length"] else "entries were added later"
        stated_length = short(chain["length"])
        raise Contradiction(
            f"the ledger {ledger_path} has {ledger.length} entries, the certificate was issued for {stated_length}: {what}"
        )
    if chain.get("head") != ledger.head:
        raise Contradiction(
            f"the head of the ledger {ledger_path} is not the one in the certificate: the ledger was rewritten"
        )
    delta = stated.get("delta")
    check_number(f"{path}: delta", delta, 0, 1)
    try:
        with _named(path):
            rebuilt = issue(ledger, float(delta), _evidence(stated, path))  # type: ignore[arg-type]
    except Refused as error:
        raise Contradiction(f"the certificate does not hold: {error} ({path})") from None
    wrong = list(differences(stated, rebuilt))
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise Contradiction(
            f"the certificate does not hold: {'; '.join(wrong[:3])}{more} ({path}; bring it back from a backup)"
        )
    if folder is not None and (folder / CONFIG).exists():
        _refuse_other_configuration(folder, rebuilt, ledger)
    here = folder is not None and bool(ledger.model) and (folder / "model").is_dir()
    if folder is not None and here:
        _refuse_other_model(folder / "model", ledger)
    return Verified(rebuilt, _count_numbers(rebuilt), ledger.length, here)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Where what is wrong stands, if the refusal does not say it itself."""
    try:
        yield
    except BadInput as error:
        if str(path) in str(error):
            raise
        raise BadInput(f"{path}: {error}") from None


def _refuse_other_model(model: Path, ledger: Ledger) -> None:
    try:
        there = model_files(model)
    except OSError as error:
        raise BadInput(
            f"cannot read {model}: {error.strerror}; make it readable, or verify the certificate alone"
        ) from None
    wrong = [name for name in sorted({*ledger.model, *there}) if ledger.model.get(name) != there.get(name)]
    if wrong:
        raise Contradiction(
            f"{model} does not hold the model that this run made, as its ledger names its files: {', '.join(map(short, wrong[:3]))}; the certificate "
            "says nothing about them. Bring them back from a backup, or write them again with `confide train --resume`"
        )


def _refuse_other_configuration(folder: Path, certificate: Mapping[str, Any], ledger: Ledger) -> None:
    config = run_config(folder)
    try:
        wrong = list(disagreements(config, certificate, ledger))
    except (TypeError, ValueError, AttributeError, ArithmeticError):
        raise BadInput(f"{folder / CONFIG} is damaged; bring it back from a backup") from None
    if wrong:
        raise Contradiction(
            f"{folder / CONFIG} is not what the certificate was issued for: {'; '.join(wrong[:3])}; bring it back from a backup "
            f"(the certificate itself holds: confide verify {folder / 'certificate.json'})"
        )


def load(path: str | Path) -> dict[str, Any]:
    """Read a certificate file; refuse what is not one, or was written by a newer confide."""
    path = Path(path)
    try:
        stated = json.loads(read_file(path), object_pairs_hook=_without_doubles)
    except OSError as error:
        raise BadInput(
            f"cannot read the certificate {path}: {error.strerror}; name a run of `confide train`, or its certificate.json"
        ) from None
    except (ValueError, RecursionError):
        if path.suffix == ".jsonl" and _begins_as_ledger(path):
            raise BadInput(
                f"{path} is a ledger, not a certificate; name the run directory or its certificate"
            ) from None
        raise BadInput(f"{path} is not a certificate: it is not complete JSON; was it cut off?") from None
    if not isinstance(stated, dict) or "confide_certificate" not in stated:
        raise BadInput(f"{path} is not a certificate: it lacks 'confide_certificate'")
    version = stated["confide_certificate"]
    if version != VERSION:
        raise BadInput(
            f"{path} has certificate schema {short(version)}, this confide knows {VERSION}; verify it with the confide that "
            "wrote it, or a newer one"
        )
    return stated


def _begins_as_ledger(path: Path) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return b'"confide_ledger":' in file.read(1 << 12)
    return False


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Contradiction("the certificate names the same field twice, so that readers could see different values")
    return found


def _evidence(stated: Mapping[str, Any], path: Path) -> Any:
    plain = stated.get("evidence")
    if plain is not None and not isinstance(plain, Mapping):
        raise BadInput(f"{path}: 'evidence' must be an object or null")
    return evidence_from_plain(plain)


def differences(stated: Any, rebuilt: Any, where: str = "") -> Iterator[str]:
    """Every leaf that differs, as one phrase each; numbers may differ by one part in a million."""
    if isinstance(rebuilt, Mapping) and isinstance(stated, Mapping):
        for key in [*rebuilt, *(key for key in stated if key not in rebuilt)]:
            place = f"{where}.{key}" if where else str(key)
            if key not in stated:
                yield f"{place} is missing"
            elif key not in rebuilt:
                yield f"{place} does not belong there"
            else:
                yield from differences(stated[key], rebuilt[key], place)
    elif isinstance(rebuilt, list) and isinstance(stated, list):
        yield from _list_differences(stated, rebuilt, where)
    elif isinstance(rebuilt, int) and not isinstance(rebuilt, bool):
        if stated != rebuilt or type(stated) is not int:
            yield f"{where} says {short(stated)}, recomputed {rebuilt}"
    elif _is_number(rebuilt) and _is_number(stated):
        if abs(stated) > 1e300 or not math.isclose(stated, rebuilt, rel_tol=TOLERANCE, abs_tol=1e-12):
            yield f"{where} says {short(stated)}, recomputed {rebuilt:.6g}"
    elif stated != rebuilt or type(stated) is not type(rebuilt):
        yield f"{where} differs from what the ledger implies"


def _list_differences(stated: list[Any], rebuilt: list[Any], where: str) -> Iterator[str]:
    names = [_name(item) for item in rebuilt]
    if where == "assumptions":
        for missing in sorted({str(n) for n in names} - {str(_name(item)) for item in stated}):
            yield f"assumption {missing!r} is missing"
    if len(stated) != len(rebuilt):
        yield f"{where} has {len(stated)} entries, should have {len(rebuilt)}"
        return
    for i, (left, right) in enumerate(zip(stated, rebuilt, strict=True)):
        label = names[i] if names[i] is not None else i
        yield from differences(left, right, f"{where}[{label}]")


def _name(item: Any) -> str | None:
    if isinstance(item, Mapping):
        name = item.get("id") or item.get("name")
        if name is not None:
            return f"{name} k={item['k']}" if "k" in item else str(name)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count_numbers(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(_count_numbers(item) for item in value.values())
    if isinstance(value, list):
        return sum(_count_numbers(item) for item in value)
    return int(_is_number(value))
