"""A review comes in; its records go out as JSON lines with masks, which JFT takes as a subset screened by hand.

The records were chosen by index before anyone looked, and none is dropped: leaving one out because of what it holds would
itself tell something about it (guarantees §6).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import BadInput, ConfideError, Refused
from ..policies import Finding, merged
from ..records import MARK, MASK, render
from ..rundir import write_private
from ..screening.treatment import redact
from .records import Shown
from .store import State, Store


def export(store: Store, file: str | Path, mask_rest: bool = False) -> dict[str, Any]:
    """Write every record of the sample, with all that the policy found and anyone marked replaced by a mask.

    Findings that were called false alarms stay masked. A skipped record is a mask alone. Records that nobody answered
    are refused, or masks alone with `mask_rest`. Out: counts.
    """
    if Path(file).exists():
        raise BadInput(f"{file} exists and is never overwritten; name another file")
    store.refresh()
    lines: list[str] = []
    masked = 0
    waiting = sum(_status(_states(store, record)) == "open" for record in store.order)
    if waiting and not mask_rest:
        raise Refused(
            f"{waiting:,} of {len(store.order):,} records are not answered, and none may be dropped; answer them, or have "
            "them written as a mask alone with --mask-rest"
        )
    for record in store.order:
        shown, states = store.records.read(record), _states(store, record)
        whole = _status(states) != "answered"
        masked += whole
        row: dict[str, Any] = {"text": MASK if whole else _masked(shown, states)}
        if shown.label is not None:
            row["label"] = shown.label
        lines.append(json.dumps(row) + "\n")  # in ASCII: no other sign ends a line
    try:
        write_private(Path(file), "".join(lines))
    except OSError as error:
        raise ConfideError(f"cannot write {file}: {error.strerror}; name another file") from None
    return {"records": len(lines), "masked_whole": masked, "file": str(file)}


def _states(store: Store, record: int) -> list[State]:
    return [store.state(record, who) for who in store.reviewers()]


def _status(states: list[State]) -> str:
    statuses = {state.status for state in states}
    return next((status for status in ("answered", "skipped") if status in statuses), "open")


def _masked(shown: Shown, states: list[State]) -> str:
    found = [Finding(*one, "") for one in (*shown.found, *(one for state in states for one in state.missed))]
    marks = [Finding(at, at + 1, "", "") for at, sign in enumerate(shown.text) if sign == MARK]
    return render(redact(shown.text, merged([*found, *marks]), [(0, len(shown.text))])[0])
