"""Everyone's answers come in; counts, the always-valid bound, its forecast and the reviewers' agreement go out.

What counts, and why the bound holds (guarantees §4.4):

* Draws are with replacement. A record that is drawn twice is answered once and counts at both places: the answer is a
  property of the record, so showing it again would say the same. Coins for the cap are fresh at each place.
* Draws count up to the last one that somebody answered. Stopping there is allowed at any moment, also after a look at the
  next record, since the bound holds at all moments at once. Leaving out one in between is not: a record before it that
  nobody answered counts as skipped, `cap` secrets of which all were missed.
* A record counts once, however many people saw it. Missed is what anyone marked; found is what nobody called a false
  alarm. An answer outweighs another reviewer's skip. A mark takes the place of the findings that it overlaps, whether it
  covers more than they do or a part of them.
* A found secret counts as missed all the same if masking it by hand would change the screened record (guarantees §3),
  unless everyone who answered calls it a false alarm.
* Where the conservative policy flags a class of secrets by construction, secrets of that class are counted for themselves:
  only for them is nothing public that was missed.
* Of more than `cap` secrets, `cap` count, chosen by the draw's coin. False alarms never count.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from itertools import combinations
from typing import Any, NamedTuple

from ..accounting.missrate import SKIPPED, Review, bound_of_kinds
from ..accounting.setting import flags_all
from ..errors import ConfideError
from ..rundir import write_private
from .file import OTHER
from .records import Secret, Shown
from .store import State, Store

TARGETS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 1e-4)
SKIP = (-1, -1)
FARTHEST = 20_000  # records that a forecast looks ahead


class Judged(NamedTuple):
    """A secret of a record, whether the policy missed it, and whether it is of the class flagged by construction."""

    start: int
    end: int
    type: str
    missed: bool
    in_class: bool = True


class Draw(NamedTuple):
    """What one draw that counts shows: all secrets of the record, those of the class, and what the cap leaves of each."""

    private: bool
    secrets: tuple[Judged, ...]
    members: tuple[Judged, ...]
    of_class: tuple[Judged, ...]
    of_all: tuple[Judged, ...]


Draws = Sequence[Draw | str]
Rows = tuple[tuple[int, int, int] | str, ...]
InClass = Callable[[Secret, bool], bool]


def judged(
    found: Sequence[Secret],
    states: Sequence[State],
    showing: Collection[Secret] = (),
    in_class: InClass = lambda one, missed: True,
    members: bool = False,
) -> list[Judged]:
    """The secrets of a record after everyone's answers. `showing`: found ones that count as missed. `in_class`: whether a
    secret, missed or not, is of the class flagged by construction; `members`: only those that are.

    *Formal guarantees.* Of the class, and of all, there are at least as many missed secrets and at most as many found ones
    as for each reviewer alone: the union can only raise the bound.
    """
    alarms = {span for state in states for span in state.alarms}
    marks = {(one.start, one.end) for state in states for one in state.missed}
    clusters: list[tuple[int, dict[int, list[Judged]]]] = []  # missed ones that overlap, by reviewer; where they end
    by_person = [(one, who) for who, state in enumerate(states) for one in _missed(state, showing)]
    for one, who in sorted(by_person if states else [(one, 0) for one in showing]):
        secret = Judged(*one, True, in_class(one, True))
        if members and not secret.in_class:
            continue
        if clusters and one.start < clusters[-1][0]:
            end, by = clusters[-1]
            clusters[-1] = (max(end, one.end), by)
        else:
            by = {}
            clusters.append((one.end, by))
        by.setdefault(who, []).append(secret)
    missed = [one for _, by in clusters for one in max(by.values(), key=len)]
    left = [Judged(*one, False, in_class(one, False)) for one in found if one not in showing]
    left = [one for one in left if not _overlaps(one, alarms | marks) and (one.in_class or not members)]
    return sorted(missed + left)


def _missed(state: State, showing: Collection[Secret]) -> list[Secret]:
    """What counts as missed for one reviewer alone: own marks, and what an answer leaves standing of `showing`."""
    taken = {*state.alarms, *((one.start, one.end) for one in state.missed)}
    shown = showing if state.status == "answered" else ()
    return [*state.missed, *(one for one in shown if not _overlaps(one, taken))]


def _overlaps(one: Secret | Judged, spans: Collection[tuple[int, int]]) -> bool:
    return any(start < one.end and one.start < end for start, end in spans)


def chosen(secrets: Sequence[Judged], cap: int, coin: bytes) -> list[Judged]:
    """At most `cap` of a record's secrets, by the draw's coin: the same ones whenever they are counted again.

    The coin decides by their order alone, so that no change of a mark's borders draws it anew.
    """
    ordered = sorted(secrets)
    ranks = sorted(range(len(ordered)), key=lambda rank: blake2b(str(rank).encode(), key=coin).digest())
    return [ordered[rank] for rank in sorted(ranks[:cap])]


Counted = tuple[bool, tuple[Judged, ...], tuple[Judged, ...]]


def _record(store: Store, record: int) -> Counted | str | None:
    """Whether a record is private, its secrets, and those of the class; "skipped"; or None if nobody has answered it."""
    if record not in store.counted:
        states = [store.state(record, who) for who in store.reviewers()]
        statuses = {state.status for state in states}
        if "answered" in statuses:
            shown = store.records.read(record)
            answers = (shown.found, states, store.policies.showing(record, shown), _in_class(store, shown))
            store.counted[record] = (shown.private, tuple(judged(*answers)), tuple(judged(*answers, members=True)))
        else:
            store.counted[record] = SKIPPED if "skipped" in statuses else None
    found: Counted | str | None = store.counted[record]
    return found


def _in_class(store: Store, shown: Shown) -> InClass:
    return lambda one, missed: store.policies.in_class(shown.text, one.start, one.end, missed)


def counted(store: Store) -> list[Draw | str]:
    """What each draw that counts shows, in the order of the draw."""
    places = [_record(store, record) for record, _ in store.draws]
    reached = [at for at, record in zip(store.drawn_at, store.order, strict=True) if _record(store, record) is not None]
    end = max(reached, default=-1) + 1
    while end < len(places) and places[end] is not None:
        end += 1  # repeats that follow at once are answered too
    out: list[Draw | str] = []
    for found, (_, coin) in zip(places[:end], store.draws, strict=False):
        if found is None or isinstance(found, str):
            out.append(SKIPPED)
        else:
            private, secrets, members = found
            of_class, of_all = (tuple(chosen(some, store.cap, coin)) for some in (members, secrets))
            out.append(Draw(private, secrets, members, of_class, of_all))
    return out


class Bound(NamedTuple):
    """What a review shows so far. `records`, `total` and `public` are about the class flagged by construction, if there is
    one, else about all secrets; `total_all` and `public_all` are about all secrets."""

    records: Rows
    total: float  # γ̄
    public: float  # δ̄₂
    contradicted: bool  # a missed secret in a public record, though all of its class are flagged by construction
    total_all: float
    public_all: float


def bound(store: Store, draws: Draws | None = None) -> Bound:
    """γ̄ and δ̄₂, jointly valid at the review's confidence, as the certificate will compute them; and the same for all secrets."""
    draws = counted(store) if draws is None else draws
    rows = tuple(one if isinstance(one, str) else _row(one.private, one.of_class) for one in draws)
    flagged = all_flagged(store)
    contradicted = flagged and any(row[2] for row in rows if not isinstance(row, str))
    total, public = _bounds(store, rows, flagged and not contradicted)
    if store.policies.recall_class is None:
        return Bound(rows, total, public, contradicted, total, public)
    every = tuple(one if isinstance(one, str) else _row(one.private, one.of_all) for one in draws)
    return Bound(rows, total, public, contradicted, *_bounds(store, every, False))


def _row(private: bool, secrets: Sequence[Judged]) -> tuple[int, int, int]:
    missed = sum(one.missed for one in secrets)
    return len(secrets), missed, 0 if private else missed


def _bounds(store: Store, rows: Rows, flagged: bool) -> tuple[float, float]:
    # Records without secrets change no bound (accounting): leaving them out saves time.
    telling = tuple(row for row in rows if isinstance(row, str) or row[0])
    return _review_bounds(telling, store.cap, store.confidence, store.begun, flagged)


@functools.lru_cache(64)
def _review_bounds(records: Rows, cap: int, confidence: float, begun: int, flagged: bool) -> tuple[float, float]:
    return Review(records, cap, confidence, begun).bounds(flagged)


@functools.lru_cache(1024)
def _review_bound(rows: tuple[tuple[tuple[int, int], int], ...], cap: int, beta: float) -> float:
    """The bound of `accounting` from kinds of records (secrets, missed) and how often there is each."""
    return bound_of_kinds(dict(rows), cap, beta)


def all_flagged(store: Store) -> bool:
    """Whether δ₂ is 0 by construction, for all secrets or for a class of them."""
    return flags_all(store.screened.manifest["certificate"])


def result(store: Store, draws: Draws | None = None) -> dict[str, Any]:
    """What `review.json` holds: counts and bounds, never text."""
    if draws is None:
        store.refresh()
        draws = counted(store)
    found = bound(store, draws)
    return {
        "confide_review": 1,
        "digest": store.screened.manifest["digest"],
        "confidence": store.confidence,
        "cap": store.cap,
        "draws": len(store.draws),
        "begun": store.begun,
        "nonce": store.nonce,
        "records": [one if isinstance(one, str) else list(one) for one in found.records],
        "left_out": sum(_left_out(one) for one in draws if not isinstance(one, str)),
        "class": store.policies.recall_class,
        "outside_class": _outside_class(store, draws),
        "types": _by_type(store, draws),
        "bound": found.total,
        "bound_public": found.public,
        "bound_all": found.total_all,
        "bound_public_all": found.public_all,
        "contradicted": found.contradicted,
        "unfit": store.policies.unfit,
        "reviewers": {
            who: dict(Counter(s for r in store.order if (s := store.state(r, who).status) != "open"))
            for who in store.reviewers()
        },
        "agreement": agreement(store),
    }


def _left_out(draw: Draw) -> int:
    """Secrets that `records` would count if there were no cap."""
    return len(draw.members) - len(draw.of_class)


def _outside_class(store: Store, draws: Draws) -> dict[str, int] | None:
    """All secrets of the counted records that are not of the class; None if there is no class."""
    if store.policies.recall_class is None:
        return None
    rows = [
        _row(one.private, [secret for secret in one.secrets if not secret.in_class])
        for one in draws
        if not isinstance(one, str)
    ]
    return {name: sum(row[i] for row in rows) for i, name in enumerate(("secrets", "missed", "public"))}


def _by_type(store: Store, draws: Draws) -> dict[str, Any]:
    """Counts and a bound for each type, of any class; β is split evenly over the types, fixed before anyone looked."""
    kinds: dict[str, Counter[tuple[int, int]]] = {name: Counter() for name in store.types}
    for one in draws:
        if isinstance(one, str):
            for rows in kinds.values():
                rows[SKIP] += 1
            continue
        mine: dict[str, list[int]] = {}
        for secret in one.of_all:
            counts = mine.setdefault(secret.type if secret.type in kinds else OTHER, [0, 0])
            counts[0] += 1
            counts[1] += secret.missed
        for name, (secrets, missed) in mine.items():
            kinds[name][secrets, missed] += 1
    beta = store.beta / len(kinds)
    found = {}
    for name, rows in kinds.items():
        skips = rows.pop(SKIP, 0)
        known = [0, 0]
        for (secrets, missed), times in rows.items():
            known[0] += secrets * times
            known[1] += missed * times
        rows[store.cap, store.cap] += skips
        limit = _review_bound(tuple(sorted((+rows).items())), store.cap, beta)
        found[name] = {"secrets": known[0], "missed": known[1], "bound": limit}
    return found


def save(store: Store, draws: Draws | None = None) -> dict[str, Any]:
    """Write `review.json` beside the review, whole or not at all, for its owner only."""
    found, path = result(store, draws), store.screened.folder / "review.json"
    try:
        write_private(path, json.dumps(found) + "\n")
    except OSError as error:
        raise ConfideError(
            f"answers are saved, but {path} cannot be written: {error.strerror}; make room or make it writable, and go on: it is "
            "written with the next answer, or by `confide review`"
        ) from None
    return found


def agreement(store: Store) -> list[dict[str, Any]]:
    """For every two reviewers: on the records that both answered, how often they agree that something was missed there.

    Cohen's kappa takes away the agreement of chance; it is None where there is no chance to take away, because both
    always said the same.
    """
    found = []
    for one, other in combinations(store.reviewers(), 2):
        pairs: Counter[tuple[bool, bool]] = Counter()
        for record in store.order:
            mine, theirs = store.state(record, one), store.state(record, other)
            if mine.status == theirs.status == "answered":
                pairs[bool(mine.missed), bool(theirs.missed)] += 1
        if total := pairs.total():
            same = (pairs[True, True] + pairs[False, False]) / total
            first, second = ((pairs[True, True] + pairs[cell]) / total for cell in ((True, False), (False, True)))
            chance = first * second + (1 - first) * (1 - second)
            kappa = None if chance == 1 else (same - chance) / (1 - chance)
            found.append({"reviewers": [one, other], "records": total, "same": same, "kappa": kappa})
    return found


def forecast(store: Store, found: Bound) -> tuple[float, int | None] | None:
    """A next, rounder bound, and about how many more clean records reach it (None: more than we look ahead).

    Clean records are thought to hold as many secrets as those so far, and none missed. None if no secret was seen yet.
    """
    seen = [row for row in found.records if not isinstance(row, str)]
    holding = [row[0] for row in seen if row[0]]
    if not holding:
        return None
    target = next((one for one in TARGETS if one < 0.98 * found.total), TARGETS[-1])
    each = max(1, round(sum(holding) / len(holding)))
    per_record = sum(holding) / len(seen) / each  # records with so many secrets, among all
    known = Counter((store.cap, store.cap) if isinstance(one, str) else one[:2] for one in found.records if one[0])
    # The certificate splits the error between γ̄ and δ̄₂ unless the latter is 0 by construction.
    beta = store.beta / (1 if all_flagged(store) and not found.contradicted else 2)
    steps = [round(10 * 1.2**i) for i in range(42) if 10 * 1.2**i <= FARTHEST]
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        rows = known + Counter({(each, 0): round(steps[middle] * per_record)})
        if _review_bound(tuple(sorted(rows.items())), store.cap, beta) <= target:
            high = middle
        else:
            low = middle + 1
    return target, steps[low] if low < len(steps) else None


def share(value: float) -> str:
    """A share in per cent, rounded up to one decimal, or to two digits where it is small: never smaller than it is."""
    each = 100 * value
    digits = 1 if each >= 0.1 or each <= 0 else 1 - math.floor(math.log10(each))
    text = f"{math.ceil(each * 10**digits - 1e-9) / 10**digits:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.')} %"


def sentences(store: Store, found: Bound) -> list[str]:
    """The bound in words, and what would make it smaller."""
    sure = f"With {100 * store.confidence:.10g} % confidence"
    if not found.records:
        return ["Nothing is answered yet, so nothing is known: the policy may miss everything."]
    of_class, capped = store.policies.recall_class, f", counting at most {store.cap} a record."
    whose = "secrets" if of_class is None else "the secrets that the conservative policy flags by construction"
    if found.total >= 1:
        seen = whose.removeprefix("the ")
        said = [f"Too few {seen} were seen to say anything yet: the policy may still miss everything."]
    else:
        said = [f"{sure} the policy misses at most {share(found.total)} of {whose}{capped}"]
    if of_class is not None:
        said.append(f"These are {of_class}.")
        if found.total_all < 1:
            said.append(
                f"Of all secrets it misses at most {share(found.total_all)}, and at most {share(found.public_all)} are missed "
                "and public (with the same confidence, taken by itself)."
            )
    elif not all_flagged(store):
        said.append(f"At most {share(found.public)} are missed and public.")
    if store.begun > 1:
        said.append(f"This is review number {store.begun:,} of this screening; the bound allows for starting over.")
    ahead = forecast(store, found)
    if ahead is None:
        said.append("No secret has been seen so far.")
    elif ahead[0] < found.total:
        target, more = ahead
        about = f"more than {FARTHEST:,}" if more is None else f"about {_round(more):,}"
        said.append(f"{about[0].upper()}{about[1:]} more clean records bring the bound to {share(target)}.")
    if found.contradicted:
        said.append(
            "A secret was missed in a public record although the conservative policy is said to flag all of its class: "
            "a certificate of crt with this review will be refused."
        )
    if store.policies.unfit:
        said.append(f"This review cannot go into a certificate: {store.policies.unfit}.")
    return said


def _round(number: int) -> int:
    """To two digits: a forecast is no measurement."""
    size: int = 10 ** max(0, len(str(number)) - 2)
    return round(number / size) * size
