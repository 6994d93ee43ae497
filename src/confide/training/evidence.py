"""A review.json and the screened corpus that it is about come in; evidence for the certificate goes out, or a refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..accounting import Review
from ..accounting.missrate import states_its_counts
from ..errors import BadInput, Refused
from ..rundir import read_file
from ..screening import Screened

FILE = "review.sqlite"
AGAIN = "`confide review DIR` counts it again from the answers"


def read_review(path: str | Path, screened: Screened) -> Review:
    """The evidence of a review of this corpus, from the review.json that `confide review` keeps.

    *Formal guarantees.* Its bounds are those of the records stated, of which there are no more than were drawn. Where the
    answers lie beside the file, the evidence is what they give when they are counted again, and whether it may be evidence
    is what is known now. That people answered rightly, and that the files were not made up, is taken on trust, and the
    certificate says so.
    """
    from ..review.policies import unfit_screening  # here: most plans have no review

    path = Path(path)
    evidence, found = _read(path)
    if found["digest"] != screened.manifest["digest"]:
        raise BadInput(
            f"{path} is a review of another screening: its misses say nothing about this one; review this one"
        )
    if not evidence.records:
        raise BadInput(f"{path}: nothing was reviewed yet; go on with `confide review DIR`")
    if unfit := unfit_screening(screened.manifest):
        raise Refused(f"{path} cannot go into a certificate: {unfit}")
    now = _count_again(path, screened)
    if found["unfit"] and now is None:
        raise Refused(
            f"{path} cannot go into a certificate: {found['unfit']}. When that is mended, {AGAIN}; they are not beside it"
        )
    if not isinstance(found["draws"], int) or len(evidence.records) > found["draws"]:
        raise BadInput(f"{path} counts more records than were drawn: it was changed; {AGAIN}")
    if not states_its_counts(found, evidence, screened.manifest["certificate"]):
        raise BadInput(f"{path} states other bounds than its records give: it was changed; {AGAIN}")
    if now is not None and (found["unfit"] or evidence != now):
        raise BadInput(f"{path} is not what the answers in {path.with_name(FILE)} give now; {AGAIN}")
    return evidence


def _read(path: Path) -> tuple[Review, dict[str, Any]]:
    try:
        found = json.loads(read_file(path))
        if found["confide_review"] == 1 and "begun" not in found:
            raise BadInput(f"an older confide wrote it, which counted otherwise; {AGAIN}")
        plain = {name: found[name] for name in ("cap", "confidence", "begun", "nonce")}
        missing = {"digest", "draws", "unfit", "bound", "bound_public", "contradicted"} - found.keys()
        if found["confide_review"] != 1 or missing:
            raise KeyError
        records = tuple(one if isinstance(one, str) else tuple(one) for one in found["records"])
        return Review(records, **plain), found
    except OSError as error:
        raise BadInput(f"cannot read the review {path}: {error.strerror}; `confide review DIR` makes one") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        known = f" ({error})" if isinstance(error, BadInput) else ""
        raise BadInput(f"{path} is no review{known}; `confide review DIR` makes one") from None


def _count_again(path: Path, screened: Screened) -> Review | None:
    """What the answers beside the file give now; None if there are none."""
    from ..review.counting import result
    from ..review.store import read_store

    answers = path.with_name(FILE)
    if not answers.exists():
        return None
    store = read_store(screened, answers)
    try:
        found = result(store)
    finally:
        store.close()
    if found["unfit"]:
        raise Refused(f"{path} cannot go into a certificate: {found['unfit']}")
    records = tuple(one if isinstance(one, str) else tuple(one) for one in found["records"])
    return Review(records, found["cap"], found["confidence"], found["begun"], found["nonce"])
