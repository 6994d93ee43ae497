"""How well scores tell members from others, and how often something was found: samples or counts come in, rates with their intervals go out.

Higher scores mean "member"; ties count half or break against the attacker. Candidates are split into two halves beforehand:
a threshold is chosen on one and counted on the other, in both directions, so that no accuracy is chosen in hindsight.
Candidates that were drawn together, such as the turns of a dialogue, stay together in a half and in a redraw.
Intervals are 95 % percentile bootstraps that draw candidates anew within each half of each side; an estimate of exactly
0 or 1, where every redraw agrees, takes the exact binomial limit instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ..errors import BadInput

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

FPRS = (0.01, 0.001)
CHANCE = {"auc": 0.5, "accuracy": 0.5, **{f"tpr_at_{fpr:g}": fpr for fpr in FPRS}}
POINTS = 200
BETA = 0.05  # of the intervals of rates
CELLS = 2**21  # numbers that a block of bootstraps may have at a time


class Split(NamedTuple):
    """Which members and which others belong to the second half; `clusters`: what they were drawn in, numbered on each side."""

    members: Flags
    others: Flags
    clusters: tuple[Ints, Ints] | None = None


def auc(members: Any, others: Any) -> float:
    """The chance that a member scores above another candidate; ties count half.

    >>> auc([2, 3], [1, 2])
    0.875
    """
    mine, theirs = _sample(members), np.sort(_sample(others))
    wins = np.searchsorted(theirs, mine, "left") + np.searchsorted(theirs, mine, "right")
    return float(wins.mean() / 2 / len(theirs))


def roc(members: Any, others: Any, points: int = POINTS) -> list[list[float]]:
    """[false positive rate, true positive rate] to draw on a logarithmic axis, from (0, ·) to (1, 1), at most about `points`."""
    mine, theirs = _sample(members), np.sort(_sample(others))[::-1]
    grid = np.unique(np.geomspace(1, len(theirs), points - 1).round().astype(int))
    found = (len(mine) - np.searchsorted(np.sort(mine), theirs[np.append(0, grid[:-1])], "right")) / len(mine)
    places = zip(np.append(0, grid) / len(theirs), np.append(found, 1.0), strict=True)
    return [[float(alarms), float(hits)] for alarms, hits in places]


def balanced_accuracy(members: Any, others: Any, threshold: float) -> float:
    """The mean of the shares of members at or above the threshold and of others below it."""
    return float(((_sample(members) >= threshold).mean() + (_sample(others) < threshold).mean()) / 2)


def best_threshold(members: Any, others: Any) -> float:
    """The threshold with the best balanced accuracy, half way between the two scores it lies between.

    Counting accuracy on the same candidates again is in hindsight, and above one half for noise.
    """
    mine, theirs = _sample(members), _sample(others)
    values, codes = np.unique(np.concatenate([mine, theirs]), return_inverse=True)
    counts = np.stack([np.bincount(part, minlength=len(values)) for part in np.split(codes, [len(mine)])])
    return float(_thresholds(values, counts[None, 0], counts[None, 1])[0])


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a rate.

    *Formal guarantees.* If `hits` is Binomial(`trials`, p), the interval holds p with probability at least `confidence`.

    >>> [round(limit, 4) for limit in clopper_pearson(0, 10)]
    [0.0, 0.3085]
    """
    if trials < 1 or not 0 <= hits <= trials or not 0 < confidence < 1:
        raise BadInput(f"an interval needs hits within trials and a confidence within 0 and 1; got {hits} of {trials}")
    rest = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(stats.beta.ppf(rest, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(stats.beta.ppf(1 - rest, hits + 1, trials - hits))
    return low, high


def rate(found: int, of: int, beta: float = BETA) -> dict[str, Any]:
    """A rate with its Clopper–Pearson interval at confidence 1−β; of nothing, None."""
    if not of:
        return {"found": 0, "of": 0, "rate": None, "interval": None}
    return {"found": found, "of": of, "rate": found / of, "interval": list(clopper_pearson(found, of, 1 - beta))}


def contrast(found: int, of: int, control_found: int, control_of: int) -> dict[str, Any]:
    """How far a rate lies above its control: the difference, an interval for it and Fisher's two-sided p-value.

    *Formal guarantees.* The interval is that of two Clopper–Pearson intervals at β/2 each, so that it covers with probability
    at least 1−β. The p-value is valid if it was by chance which of the values were trained on and which held out,
    however they hang together in the texts that the model writes.
    """
    if not (of and control_of):
        return {"difference": None, "interval": None, "p_value": None}
    mine, other = rate(found, of, BETA / 2), rate(control_found, control_of, BETA / 2)
    table = [[found, of - found], [control_found, control_of - control_found]]
    return {
        "difference": mine["rate"] - other["rate"],
        "interval": [mine["interval"][0] - other["interval"][1], mine["interval"][1] - other["interval"][0]],
        "p_value": min(1.0, float(stats.fisher_exact(table)[1])),
    }


def split(
    members: int, others: int, rng: np.random.Generator, groups: tuple[Sequence[str], Sequence[str]] | None = None
) -> Split:
    """Both sides cut in two at random, as evenly as can be; candidates of one group are never in different halves."""
    if groups is None:
        mine, theirs = (np.arange(count) for count in (members, others))
        return Split(_half(mine, rng), _half(theirs, rng))
    mine, theirs = (np.unique(np.array(side), return_inverse=True)[1] for side in groups)
    return Split(_half(mine, rng), _half(theirs, rng), (mine, theirs))


def _half(clusters: Ints, rng: np.random.Generator) -> Flags:
    """Groups in random order: those in the middle of which half of the candidates are reached, and all that follow."""
    sizes = np.bincount(clusters)
    order = rng.permutation(len(sizes))
    second = np.zeros(len(sizes), dtype=bool)
    second[order[np.cumsum(sizes[order]) - sizes[order] / 2 >= sizes.sum() / 2]] = True
    return np.asarray(second[clusters])


def measure(
    members: Any, others: Any, halves: Split, rng: np.random.Generator, *, bootstraps: int = 1000, held: bool = False
) -> dict[str, Any]:
    """AUC, accuracy and true positive rates, each as value, low, high and chance level, and the points of the ROC.

    With `held`, the first half only chooses (the threshold here, and whatever the caller chose on it): every number comes
    from the second half. A true positive rate at a false positive rate below one other candidate means nothing: None,
    with the reason. `bootstraps` of 0 leaves the intervals out (None).
    """
    strata = _strata(_sample(members), _sample(others), halves)
    values, parts, whole = _counts(strata)
    found = _metrics(values, whole[None], held)
    again = _bootstrap(values, parts, _clusters(halves), whole, rng, bootstraps, held)
    counted = 1 if held else 0  # the first stratum of a side that numbers come from
    mine, theirs = np.concatenate(strata[counted:2]), np.concatenate(strata[2 + counted :])
    fewest = {"auc": min(len(mine), len(theirs)), "accuracy": min(len(mine), len(theirs))}
    result: dict[str, Any] = {}
    for name, chance in CHANCE.items():
        if name.startswith("tpr") and len(theirs) * chance < 1:
            result[name] = nothing(chance, f"needs at least {round(1 / chance):,} others, there are {len(theirs):,}")
            continue
        draws = again[name] if bootstraps else None
        result[name] = estimate(float(found[name][0]), draws, chance, fewest.get(name, len(mine)))
    return {**result, "roc": roc(mine, theirs)}


def rates(members: Any, others: Any, halves: Split) -> dict[str, float]:
    """The numbers of `measure` alone, whether or not they mean anything."""
    values, _, whole = _counts(_strata(_sample(members), _sample(others), halves))
    return {name: float(found[0]) for name, found in _metrics(values, whole[None], held=False).items()}


def estimate(value: float, draws: Floats | None, chance: float, trials: int) -> dict[str, Any]:
    """A number beside its chance level and the 95 % interval that bootstrap draws of it give.

    At exactly 0 or 1 the draws agree whatever the truth is; the limit is then that of `trials` independent ones.
    """
    low = high = None
    if draws is not None:
        low, high = (float(limit) for limit in np.percentile(draws, [2.5, 97.5]))
        if value in (0.0, 1.0):
            exact = clopper_pearson(round(value * trials), trials)
            low, high = min(low, exact[0]), max(high, exact[1])
    return {"value": value, "low": low, "high": high, "chance": chance}


def nothing(chance: float, reason: str) -> dict[str, Any]:
    """A number that cannot be given, and why."""
    return {"value": None, "low": None, "high": None, "chance": chance, "reason": reason}


def redrawn(count: int) -> int:
    """How many to draw anew of so many: one fewer, since redraws vary less than samples do, by (n−1)/n."""
    return max(1, count - 1)


def group_sums(table: Floats, pool: Ints, size: int, count: int, rng: np.random.Generator) -> Floats:
    """Sums over groups of different places of the pool: each shuffle of it is cut into as many groups as fit."""
    fit = len(pool) // size
    shuffles = rng.permuted(np.tile(pool, (-(-count // fit), 1)), axis=1)[:, : fit * size]
    chosen = shuffles.reshape(-1, size)[:count]
    sums: Floats = np.clip(table, -1e290, 1e290)[:, chosen].sum(-1)
    return sums


def _sample(scores: Any) -> Floats:
    found = np.asarray(scores, dtype=np.float64).reshape(-1)
    if not len(found) or np.isnan(found).any():
        raise BadInput("a sample of scores is empty or holds what is not a number")
    return np.clip(found, -1e300, 1e300)  # a token of probability 0 makes infinite scores, between which is no middle


def _strata(members: Floats, others: Floats, halves: Split) -> list[Floats]:
    """Members of the first and the second half, others of the first and the second half."""
    strata = [
        side[flags == second]
        for side, flags in ((members, halves.members), (others, halves.others))
        for second in (False, True)
    ]
    if min(map(len, strata)) < 1:
        raise BadInput("each half needs at least one member and one other candidate; give more candidates")
    return strata


def _clusters(halves: Split) -> list[Ints]:
    """The clusters of each stratum's candidates, from 0 on; each candidate its own if nothing is known."""
    found = []
    for number, flags in enumerate((halves.members, halves.others)):
        known = np.arange(len(flags)) if halves.clusters is None else halves.clusters[number]
        found += [np.unique(known[flags == second], return_inverse=True)[1] for second in (False, True)]
    return found


def _counts(strata: list[Floats]) -> tuple[Floats, list[Ints], Ints]:
    """The scores that occur, each stratum's as places among them, and how often each occurs in each stratum."""
    values, codes = np.unique(np.concatenate(strata), return_inverse=True)
    parts = np.split(codes, np.cumsum([len(part) for part in strata])[:-1])
    return values, parts, np.stack([np.bincount(part, minlength=len(values)) for part in parts])


def _above(counts: Ints) -> Ints:
    """How many lie at or above each value, and above all of them: [..., K] to [..., K+1]."""
    total = np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1]
    return np.concatenate([total, np.zeros((*counts.shape[:-1], 1), dtype=total.dtype)], axis=-1)


def _thresholds(values: Floats, members: Ints, others: Ints) -> Floats:
    """The best threshold of each row of counts by value; −∞ accepts everything, ∞ nothing."""
    gain = _above(members) / members.sum(-1, keepdims=True) - _above(others) / others.sum(-1, keepdims=True)
    cut = (gain > gain.max(-1, keepdims=True) - 1e-12).argmax(-1)
    # The scores that are there on both sides of the cut: a redraw leaves some values empty
    known = (members + others) > 0
    places = np.where(known, np.arange(len(values)), len(values))
    after = np.minimum.accumulate(places[:, ::-1], axis=-1)[:, ::-1]
    after = np.concatenate([after, np.full((len(after), 1), len(values))], axis=-1)
    accepted = np.append(values, np.inf)[after[np.arange(len(cut)), cut]]
    rejected = np.concatenate([[-np.inf], values])[cut]
    return np.where(cut == 0, -np.inf, np.where(np.isinf(accepted), np.inf, rejected / 2 + accepted / 2))


def _metrics(values: Floats, counts: Ints, held: bool) -> dict[str, Floats]:
    """The numbers of each row of counts [rows, stratum, value]."""
    first, second = (counts[:, 0], counts[:, 2]), (counts[:, 1], counts[:, 3])
    members, others = second if held else (first[0] + second[0], first[1] + second[1])
    found, alarms = _above(members), _above(others)
    size, rest = members.sum(-1), others.sum(-1)
    below = rest[:, None] - alarms[:, :-1]
    result = {"auc": (members * (below + others / 2)).sum(-1) / (size * rest)}
    ways = [(first, second)] if held else [(first, second), (second, first)]
    result["accuracy"] = np.mean([_counted(values, chosen, counted) for chosen, counted in ways], axis=0)
    for fpr in FPRS:
        allowed = alarms <= fpr * rest[:, None] + 1e-9
        result[f"tpr_at_{fpr:g}"] = np.where(allowed, found, 0).max(-1) / size
    return result


def _counted(values: Floats, chosen: tuple[Ints, Ints], counted: tuple[Ints, Ints]) -> Floats:
    """Balanced accuracy on one half of the threshold that is best on the other."""
    cuts = np.searchsorted(values, _thresholds(values, *chosen), "left")
    at = np.arange(len(cuts)), cuts
    members, others = counted
    rate = _above(members)[at] / members.sum(-1) + 1 - _above(others)[at] / others.sum(-1)
    return np.asarray(rate / 2, dtype=np.float64)


def _bootstrap(
    values: Floats,
    parts: list[Ints],
    clusters: list[Ints],
    whole: Ints,
    rng: np.random.Generator,
    bootstraps: int,
    held: bool,
) -> dict[str, Floats]:
    """The numbers of samples drawn anew within each stratum, whole clusters at a time; with `held` the half that chose stays."""
    blocks: list[dict[str, Floats]] = []
    block = max(1, CELLS // (4 * len(values)))
    for start in range(0, bootstraps, block):
        rows = min(block, bootstraps - start)
        counts = np.empty((rows, 4, len(values)), dtype=np.int64)
        for number, part in enumerate(parts):
            if held and number in (0, 2):
                counts[:, number] = whole[number]
                continue
            size = int(clusters[number].max()) + 1
            drawn = rng.integers(size, size=(rows, redrawn(size))) + np.arange(rows)[:, None] * size
            times = np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, -1)[:, clusters[number]]
            places = part + np.arange(rows)[:, None] * len(values)
            found = np.bincount(places.ravel(), times.ravel(), minlength=rows * len(values))
            counts[:, number] = found.reshape(rows, -1).round()
        blocks.append(_metrics(values, counts, held))
    return {name: np.concatenate([one[name] for one in blocks]) for name in CHANCE} if blocks else {}
