"""What a run's folder holds: a folder in; plain data out, with every missing part named beside the command that makes it."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from ..accounting import Ledger, Setting, read_ledger, verify
from ..accounting.events import to_plain
from ..accounting.guarantees import Accounts
from ..errors import BadInput, ConfideError

PRIVATE_METHODS = ("crt", "dpsgd", "sdp", "jft")
CURVE_GROUPS = (1, 2, 3, 5)
MOST_SIBLINGS = 40


class Missing(NamedTuple):
    """A part that is not there: what it would show, and how to get it."""

    part: str
    why: str
    command: str


@dataclass(frozen=True)
class Verdict:
    """What is to be said first. `kind`: holds, broken, none or unfinished."""

    kind: str
    headline: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """A run as plain data; parts that do not exist are None or empty."""

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
    validations: tuple[dict[str, Any], ...]
    utility: dict[str, Any] | None
    manifest: dict[str, Any] | None
    review: dict[str, Any] | None
    attacks: dict[str, Any] | None
    missing: tuple[Missing, ...]
    shareable: bool = False

    @property
    def main(self) -> dict[str, Any] | None:
        """The certificate's first guarantee that has an ε: the one without a condition wherever there is one."""
        stated = [] if self.certificate is None else self.certificate["guarantees"]
        finite = [one for one in stated if one["epsilon"] is not None and one["name"] != "detected-secret"]
        return next(iter(finite), None)


def gather(folder: str | Path, *, quick: bool = False) -> Found:
    """Read a run and verify its certificate now. `quick` leaves verification, curves, attacks and corpus out."""
    folder = Path(folder)
    config = _config(folder)
    options, method = config["options"], str(config["options"]["method"])
    digest, screened = str(config.get("digest", "")), str(config.get("screened", ""))
    missing: list[Missing] = []
    certificate = _json(folder / "certificate.json", "remove it and finish the run with --resume")
    attacks = None if quick else _attacks(folder, missing)
    ledger, accounts = _ledger(folder)
    validations = _validations(folder / "telemetry.jsonl", options)
    manifest = None if quick else _manifest(screened, digest, missing)
    return Found(
        name=folder.resolve().name,
        folder=folder,
        method=method,
        options=options,
        version=str(config.get("confide", "")),
        digest=digest,
        screened=screened,
        verdict=_verdict(folder, method, certificate, attacks, missing, quick),
        certificate=certificate,
        ledger=ledger,
        curves=()
        if quick or certificate is None or accounts is None
        else _curves(accounts, float(certificate["delta"])),
        validations=validations,
        utility=_utility(validations, options),
        manifest=manifest,
        review=None if quick else _review(screened, digest, missing),
        attacks=attacks,
        missing=tuple(missing),
    )


def siblings(found: Found) -> list[Found]:
    """Other runs in the same parent folder that were trained on the very same screened records."""
    beside = []
    for config in sorted(found.folder.resolve().parent.glob("*/config.yaml"))[:MOST_SIBLINGS]:
        if config.parent != found.folder.resolve():
            try:
                other = gather(config.parent, quick=True)
            except ConfideError:
                continue
            if other.digest == found.digest and other.utility is not None:
                beside.append(other)
    return beside


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError:
        raise BadInput(
            f"{folder} is not a run: it holds no config.yaml; name a folder that confide train made"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        config = None
    if not isinstance(config, dict) or not isinstance(config.get("options"), dict) or "method" not in config["options"]:
        raise BadInput(f"{path} is damaged; without it nothing can be said about the run")
    return config


def _json(path: Path, remedy: str) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise BadInput(f"{path} is damaged; {remedy}")
    return found


def _attacks(folder: Path, missing: list[Missing]) -> dict[str, Any] | None:
    command = f"confide attack {_quoted(folder)}"
    found = _json(folder / "attacks.json", f"remove it and run {command}")
    if found is None:
        missing.append(Missing("attacks", "nobody has attacked this model yet", command))
        return None
    if found.get("confide_attacks") != 1 or not isinstance(found.get("contradictions"), list):
        raise BadInput(f"{folder / 'attacks.json'} is damaged; remove it and run {command}")
    if "skipped" in found.get("audit", {}).get("black_box", {"skipped": ""}):
        again = "confide screen CORPUS … --canaries audit -o DIR, then train and attack again"
        missing.append(
            Missing("audit", "no canaries with coins were planted, so that no lower bound can be measured", again)
        )
    return found


def _ledger(folder: Path) -> tuple[dict[str, Any] | None, Accounts | None]:
    path = folder / "ledger.jsonl"
    if not path.is_file() or not path.stat().st_size:
        return None, None
    try:
        ledger = read_ledger(path)
        accounts = Accounts(Setting.from_plain(ledger.setting), ledger)
    except ConfideError:  # the verdict says why
        return None, None
    return _plain_ledger(ledger), accounts


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


def _validations(path: Path, options: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The lines of the telemetry that hold a validation or an ε; a torn last line is left out."""
    if not path.is_file():
        return ()
    text = path.read_text(encoding="utf-8", errors="replace")
    found = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        if isinstance(one, dict) and (one.get("validation_loss") is not None or one.get("epsilon") is not None):
            loss = one.get("validation_loss")
            causal = options.get("task", "causal") == "causal"
            found.append(
                {
                    **{name: one.get(name) for name in ("phase", "epoch", "slot", "epsilon", "delta", "epsilon_of")},
                    "loss": loss,
                    "accuracy": one.get("validation_accuracy"),
                    "perplexity": math.exp(loss) if causal and loss is not None and loss < 700 else None,
                }
            )
    return tuple(found)


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


def _manifest(screened: str, digest: str, missing: list[Missing]) -> dict[str, Any] | None:
    found = _json(Path(screened) / "manifest.json", "screen the corpus again")
    if found is None or found.get("digest") != digest:
        why = "the screened corpus is not where it was" if found is None else "the folder now holds another screening"
        missing.append(
            Missing("corpus", why, f"put it back to {_quoted(screened)}" if screened else "confide screen CORPUS …")
        )
        return None
    return found


def _review(screened: str, digest: str, missing: list[Missing]) -> dict[str, Any] | None:
    path, command = Path(screened) / "review.json", f"confide review {_quoted(screened)}"
    found = _json(path, f"remove it and run {command}")
    if found is None or found.get("confide_review") != 1 or found.get("digest", digest) != digest:
        why = "nobody has looked for secrets that the policy missed"
        missing.append(Missing("review", why if found is None else "the review is about another screening", command))
        return None
    return found


def _verdict(folder: Path, method: str, certificate: Any, attacks: Any, missing: list[Missing], quick: bool) -> Verdict:
    """Contradictions first, then what is promised, then why nothing is."""
    again = f"confide train {'…'} -o {_quoted(folder)} --resume"
    finished = (folder / "model" / "config.json").is_file()
    if not finished:
        missing.append(Missing("model", "the run was interrupted before it ended", again))
    contradicted = tuple(map(str, attacks["contradictions"])) if attacks else ()
    if certificate is not None and not quick:
        try:
            numbers = verify(folder).numbers
        except ConfideError as error:
            return Verdict("broken", "The certificate does not hold", (str(error), *contradicted))
        if contradicted:
            return Verdict("broken", "An attack contradicts the certificate", contradicted)
        says = f"Recomputed from its ledger just now: the chain is unbroken and all {numbers} numbers agree."
        return Verdict("holds", "The certificate holds", (says,))
    if contradicted:
        return Verdict("broken", "An attack contradicts what was promised", contradicted)
    if certificate is not None:
        return Verdict("holds", "There is a certificate")
    if not finished:
        return Verdict(
            "unfinished", "Nothing is promised yet", ("The run has not ended, so that there is no certificate.",)
        )
    why = (
        "a certificate is issued when such a run ends"
        if method in PRIVATE_METHODS
        else f"training by {method} gives none"
    )
    how = again if method in PRIVATE_METHODS else "confide train … --method crt --epsilon 2 -o NEW_RUN"
    missing.append(Missing("certificate", why, how))
    return Verdict("none", "Nothing is promised", (f"This run has no certificate: {why}.",))


def _quoted(path: object) -> str:
    return shlex.quote(str(path))
