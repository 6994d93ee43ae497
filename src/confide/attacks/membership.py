"""Membership inference: a model, records it was trained on and records held out come in; how well they can be told apart goes out.

Others must come from the same distribution as members, or an attack finds that difference and not the training; a blind
baseline, which never sees the model, shows how much of it there is. Every number has its interval and its chance level
beside it. The papers' protocols, some of which choose in hindsight or compare with random strings, are in protocols.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadInput
from .blind import blind_scores
from .candidates import Candidate, check_candidates, groups_of, overlap
from .likelihood import Scored, Tick, check_rows, score_classes, score_rows
from .statistics import CHANCE, Floats, Ints, Split, auc, estimate, group_sums, measure, nothing, rates, redrawn, split

ALL = ("loss", "zlib", "min-k%++", "reference")
LOWEST = 0.2  # the share of tokens that Min-K%++ looks at
GROUP_BOOTSTRAPS = 200

MEANS = {
    "loss": "mean log-likelihood of a token",
    "zlib": "log-likelihood over the bits that zlib needs for the text",
    "min-k%++": "mean of the lowest fifth of the tokens' standardised log-likelihoods",
    "reference": "mean log-likelihood of a token minus a reference model's",
}


def membership(
    model: Any,
    members: Sequence[Candidate],
    others: Sequence[Candidate],
    *,
    reference: Any | None = None,
    labels: tuple[Sequence[int], Sequence[int]] | None = None,
    scores: Sequence[str] = ALL,
    group: int = 0,
    groups: int = 2000,
    seed: int | None = None,
    bootstraps: int = 1000,
    tick: Tick = lambda done: None,
) -> dict[str, Any]:
    """Every score's AUC, accuracy and true positive rates at 1 % and 0.1 % false positives; the blind baseline's; the strongest's.

    `reference` reads the same token ids as the model: the same tokenizer, without the private training. `labels` are the
    classes of members and of others if the model is a classifier, of which only the loss and the reference can be
    computed. With `group`, sums over `groups` groups of so many candidates on each side are compared too.

    The strongest score is chosen by AUC on one half of the candidates and its numbers come from the other half;
    `beats_blind` says whether its AUC's interval lies above the blind baseline's. `tick` is called with rows scored.
    """
    check_candidates(members, others)
    names = _names(scores, reference, labels)
    if bootstraps < 0 or groups < 2 or group < 0 or group == 1:
        raise BadInput(
            f"group must be 0 or at least 2, groups at least 2, bootstraps at least 0; got {group}, {groups}, {bootstraps}"
        )
    both = [*members, *others]
    classes = None if labels is None else [*labels[0], *labels[1]]
    table = candidate_scores(model, both, names, reference=reference, labels=classes, tick=tick)
    mine = {name: found[: len(members)] for name, found in table.items()}
    theirs = {name: found[len(members) :] for name, found in table.items()}
    rng = np.random.default_rng(seed)
    halves = split(len(members), len(others), rng, groups_of(members, others))
    attacks = {
        name: {"means": MEANS[name], **measure(mine[name], theirs[name], halves, rng, bootstraps=bootstraps)}
        for name in names
    }
    blind = _blind(members, others, halves, rng, bootstraps)
    strongest = _strongest(mine, theirs, halves, rng, bootstraps)
    result = {
        "members": len(members),
        "others": len(others),
        "others_also_members": overlap(members, others),
        "attacks": attacks,
        "blind": blind,
        "strongest": strongest,
        "beats_blind": _beats(strongest, blind),
        "group": None,
        "interval": "95 %, by redrawing candidates; the model, the halves and the blind classifier stay as they are",
    }
    if group:
        result["group"] = grouped(mine, theirs, halves, group, groups, rng, bootstraps)
    return result


def candidate_scores(
    model: Any,
    candidates: Sequence[Candidate],
    names: Sequence[str],
    *,
    reference: Any | None = None,
    labels: Sequence[int] | None = None,
    tick: Tick = lambda done: None,
) -> dict[str, Floats]:
    """Each score of each candidate; higher means more likely a member."""
    rows = [one.row for one in candidates]
    if labels is not None:
        own = -score_classes(model, rows, labels, tick=tick)
        found = {"loss": own}
        if "reference" in names:
            found["reference"] = _difference(own, -score_classes(reference, rows, labels, tick=tick))
        return {name: found[name] for name in names}
    if "reference" in names:
        check_rows(reference, rows)  # before the long work
    scored = score_rows(model, rows, standardised="min-k%++" in names, tick=tick)
    if any(not len(one.nats) for one in scored):
        raise BadInput("a candidate has no token that counts, so that nothing can be said about it; leave it out")
    own = np.array([-one.nats.mean() for one in scored])
    result: dict[str, Floats] = {}
    for name in names:
        if name == "loss":
            result[name] = own
        elif name == "zlib":
            result[name] = np.array(
                [-one.nats.sum() / _bits(candidate.text) for one, candidate in zip(scored, candidates, strict=True)]
            )
        elif name == "min-k%++":
            result[name] = np.array([_lowest(one) for one in scored])
        else:
            other = score_rows(reference, rows, tick=tick)
            result[name] = _difference(own, np.array([-one.nats.mean() for one in other]))
    return result


def grouped(
    members: Mapping[str, Floats],
    others: Mapping[str, Floats],
    halves: Split,
    size: int,
    groups: int,
    rng: np.random.Generator,
    bootstraps: int,
) -> dict[str, Any]:
    """How well sums over groups of `size` candidates, all members or all others, are told apart.

    A group's candidates are different ones of one half, so that a threshold chosen on groups of one half is counted on
    groups that share no candidate with them. Groups of a half do share candidates: the interval redraws the candidates and
    then their groups; for AUC it is somewhat short with few candidates (in simulations it held the truth 89 % of the time at 60
    on a side and groups of 10, 93 % at 300 and groups of 20). `disjoint` is how many groups there are without sharing, and decides which rates mean anything.
    """
    sides = (halves.members, halves.others)
    smallest = min(int((flags == half).sum()) for flags in sides for half in (False, True))
    if smallest < size:
        raise BadInput(
            f"groups of {size} need at least {2 * size} members and as many others; give more or smaller groups"
        )
    names = list(members)
    tables = [np.stack([side[name] for name in names]) for side in (members, others)]
    where = [[np.flatnonzero(flags == half) for half in (False, True)] for flags in sides]
    drawn = halves.clusters or tuple(np.arange(len(flags)) for flags in sides)
    per_half = groups // 2

    def sums(redraw: bool) -> list[Floats]:
        found = []
        for table, parts, clusters in zip(tables, where, drawn, strict=True):
            pools = [_again(part, clusters[part], size, rng) if redraw else part for part in parts]
            found.append(np.concatenate([group_sums(table, pool, size, per_half, rng) for pool in pools], axis=1))
        return found

    flags = np.repeat([False, True], per_half)
    pairs = Split(flags, flags)
    disjoint = [sum(len(part) // size for part in parts) for parts in where]
    mine, theirs = sums(redraw=False)
    plain = {n: measure(mine[i], theirs[i], pairs, rng, bootstraps=0) for i, n in enumerate(names)}
    draws: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(min(bootstraps, GROUP_BOOTSTRAPS)):
        again = sums(redraw=True)
        for i, name in enumerate(names):
            draws[name].append(rates(again[0][i], again[1][i], pairs))
    attacks: dict[str, Any] = {}
    for name, found in plain.items():
        attacks[name] = {"roc": found["roc"]}
        for key, chance in CHANCE.items():
            if found[key]["value"] is None or (key.startswith("tpr") and disjoint[1] * chance < 1):
                reason = f"needs {round(1 / chance):,} groups that share no candidate, there are {disjoint[1]:,}"
                attacks[name][key] = nothing(chance, reason)
            else:
                known = np.array([one[key] for one in draws[name]]) if bootstraps else None
                attacks[name][key] = estimate(found[key]["value"], known, chance, min(disjoint))
    return {
        "size": size,
        "groups": 2 * per_half,
        "disjoint": min(disjoint),
        "attacks": attacks,
        "interval": "95 %, by redrawing candidates and then groups of them",
    }


def _again(part: Ints, clusters: Ints, size: int, rng: np.random.Generator) -> Ints:
    """Candidates drawn anew, whole clusters at a time, at least `size` of them."""
    order = np.argsort(clusters, kind="stable")
    pieces = np.split(part[order], np.flatnonzero(np.diff(clusters[order])) + 1)
    found: list[Ints] = []
    while sum(map(len, found)) < size:
        found += [pieces[n] for n in rng.integers(len(pieces), size=redrawn(len(pieces)))]
    return np.concatenate(found)


def _names(scores: Sequence[str], reference: Any | None, labels: object | None) -> list[str]:
    unknown = [name for name in scores if name not in ALL]
    if unknown or not scores:
        raise BadInput(f"scores are {', '.join(ALL)}; got {', '.join(unknown) or 'none'}")
    possible = {"loss", "reference"} if labels is not None else set(ALL)
    if reference is None:
        possible -= {"reference"}
    names = [name for name in dict.fromkeys(scores) if name in possible]
    if not names:
        raise BadInput("none of the scores asked for can be computed: the reference score needs a reference model")
    return names


def _blind(
    members: Sequence[Candidate],
    others: Sequence[Candidate],
    halves: Split,
    rng: np.random.Generator,
    bootstraps: int,
) -> dict[str, Any]:
    mine, theirs = blind_scores([one.text for one in members], [one.text for one in others], halves)
    found = measure(mine, theirs, halves, rng, bootstraps=bootstraps)
    return {"means": "the texts alone, by a classifier that never sees the model", **found}


def _strongest(
    members: Mapping[str, Floats],
    others: Mapping[str, Floats],
    halves: Split,
    rng: np.random.Generator,
    bootstraps: int,
) -> dict[str, Any]:
    """The score that does best on the first half, and how it does on the second."""
    first = {name: auc(members[name][~halves.members], others[name][~halves.others]) for name in members}
    name = max(first, key=lambda one: first[one])
    found = measure(members[name], others[name], halves, rng, bootstraps=bootstraps, held=True)
    return {"name": name, "chosen": "on the other half of the candidates", **found}


def _beats(attack: Mapping[str, Any], blind: Mapping[str, Any]) -> bool | None:
    """Whether the attack's interval lies above the blind one's, and above chance; None without intervals."""
    if attack["auc"]["low"] is None:
        return None
    return bool(attack["auc"]["low"] > max(blind["auc"]["high"], CHANCE["auc"]))


def _lowest(one: Scored) -> float:
    assert one.z is not None
    count = max(1, int(LOWEST * len(one.z)))
    return float(np.sort(one.z)[:count].mean())


def _bits(text: str) -> int:
    return 8 * len(zlib.compress(text.encode("utf-8", "replace")))


def _difference(own: Floats, other: Floats) -> Floats:
    """Where both are −∞ nothing is known, and nothing is claimed."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(own - other, nan=0.0, posinf=np.inf, neginf=-np.inf)
