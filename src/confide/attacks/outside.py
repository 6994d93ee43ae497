"""Files of texts that a model of another program did or did not see: candidates out, and what became of every row, in counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..models.tokens import texts_of
from .candidates import Candidate
from .likelihood import Row, context, text_row


def read_candidates(file: str | Path, model: Any, tokenizer: Any) -> tuple[list[Candidate], dict[str, Any]]:
    """The texts of a file as far as the model sees them, as training would have cut them; and counts that hold no text."""
    most = context(model)
    left_out: Counter[str] = Counter()
    found, cut = [], 0
    for text in texts_of(Path(file), left_out):
        ids = text_row(tokenizer, text).ids
        if len(ids) < 2:
            left_out["too short: nothing in it to predict"] += 1
            continue
        cut += most is not None and len(ids) > most + 1
        found.append(Candidate(Row(ids if most is None else ids[: most + 1]), text))
    reasons: Counter[str] = Counter()
    for reason, times in left_out.items():
        reasons[re.sub(r"\d+", "…", reason)] += times  # rows differ in the place of what is wrong
    counts = {"rows": len(found) + reasons.total(), "used": len(found), "left_out": dict(reasons.most_common())}
    return found, {**counts, "cut": cut, "repeated": len(found) - len({one.text for one in found})}


def told(rows: Mapping[str, Any]) -> Iterator[str]:
    """A line for each file of which not every row became a candidate of its own."""
    for side, one in rows.items():
        said = []
        if one["left_out"]:
            reasons = ", ".join(f"{reason}: {times:,}" for reason, times in one["left_out"].items())
            said.append(f"{one['rows'] - one['used']:,} left out ({reasons})")
        said += [f"{one['cut']:,} cut to what the model sees"] if one["cut"] else []
        said += [f"{one['repeated']:,} read like an earlier one"] if one["repeated"] else []
        if said:
            yield f"{side}: of {one['rows']:,} rows {'; '.join(said)}"
