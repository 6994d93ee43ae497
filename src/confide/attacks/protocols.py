"""The papers' membership inference as they describe it: members and generated others come in, their accuracies go out, labelled.

These numbers compare with the papers', and with nothing else: real secrets against random strings differ whether or not a
model was trained on them, and a threshold chosen in hindsight is above one half for noise. The sound numbers are those of
membership.py. Beside each accuracy stands what noise gets by the same protocol, and the blind baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadInput
from .blind import blind_scores
from .candidates import Candidate, check_candidates, overlap
from .likelihood import Tick, score_rows
from .statistics import Flags, Floats, Ints, auc, balanced_accuracy, best_threshold, group_sums, split

SHUFFLES = 200  # of the labels, to see what noise gets


class Preset(NamedTuple):
    """A paper's protocol: how many candidates on each side, how many extremes are kept, groups on each side and their size."""

    what: str
    flaw: str
    each: int
    threshold: str  # "hindsight" or "median"
    kept: tuple[int, ...] = ()
    groups: int = 0
    size: int = 0


_RANDOM = "the others are random strings, so that a difference in distribution counts as membership"
_HINDSIGHT = "the threshold is chosen in hindsight, on the candidates that it is counted on"
_MEDIAN = "the attacker is told that half of the candidates are members"

PRESETS: dict[str, Preset] = {
    "crt": Preset(
        "CRT, A.5: 1,000 secrets of the training text against 1,000 generated ones of the same format, by perplexity",
        f"{_RANDOM}; {_HINDSIGHT}",
        1000,
        "hindsight",
    ),
    "crt-group": Preset(
        "CRT, A.5: 2,000 groups of 20, half of them all secrets and half all generated, by the sum of perplexities",
        f"{_RANDOM}; {_HINDSIGHT}; groups share candidates; a single high perplexity decides a sum",
        1000,
        "hindsight",
        groups=1000,
        size=20,
    ),
    "sdp": Preset(
        "S-DP, 5.1: 500 secrets of the training text against 500 generated ones, the lower half by perplexity called members",
        f"{_RANDOM}; {_MEDIAN}",
        500,
        "median",
    ),
    "sdp-two-round": Preset(
        "S-DP, A.5: of 1,000 candidates the 300 with the lowest and highest perplexities are kept and attacked again; also with "
        "300 from each end, since the paper can be read either way",
        f"{_RANDOM}; {_MEDIAN}; only candidates that the first round was surest of are counted",
        500,
        "median",
        kept=(300, 600),
    ),
}


def protocol(
    name: str,
    model: Any,
    members: Sequence[Candidate],
    others: Sequence[Candidate],
    *,
    seed: int | None = None,
    tick: Tick = lambda done: None,
) -> dict[str, Any]:
    """A preset's accuracy, as the paper counts it, and what labels drawn at random get by the same counting.

    As many candidates as the paper's are drawn on each side, or the most that both sides have. `generated_like` makes
    values for the others. There are no intervals, since these numbers are not estimates of anything sound.
    """
    if name not in PRESETS:
        raise BadInput(f"protocols are {', '.join(PRESETS)}; got {name!r}")
    check_candidates(members, others)
    preset, rng = PRESETS[name], np.random.default_rng(seed)
    each = min(preset.each, len(members), len(others))
    mine = [members[i] for i in rng.permutation(len(members))[:each]]
    theirs = [others[i] for i in rng.permutation(len(others))[:each]]
    scores = -_perplexities(model, [*mine, *theirs], tick)
    labels = np.arange(2 * each) < each
    # Ties fall at random: a constant model must not profit from the order of its candidates
    noise = np.argsort(np.argsort(rng.random(2 * each)))
    order = np.lexsort((noise, scores))
    result: dict[str, Any] = {
        "protocol": name,
        "what": preset.what,
        "flaw": preset.flaw,
        "members": each,
        "others": each,
        "wanted": preset.each,
        "others_also_members": overlap(mine, theirs),
        "threshold": "chosen in hindsight" if preset.threshold == "hindsight" else "the median",
        "auc": auc(scores[labels], scores[~labels]),
    }
    if preset.groups:
        if each < preset.size:
            raise BadInput(f"groups of {preset.size} need at least {preset.size} candidates on each side; got {each}")
        result |= {"groups": 2 * preset.groups, "size": preset.size}
        result |= _beside_noise(labels, lambda who: _of_groups(scores, who, preset, rng), rng)
    else:
        count = _in_hindsight if preset.threshold == "hindsight" else _at_median
        result |= _beside_noise(labels, partial(count, scores, order), rng)
    if preset.kept:
        result["first_round"] = {key: result[key] for key in ("accuracy", "chance", "chance_high")}
        readings = []
        for kept in preset.kept:
            ends = min(kept, 2 * each) // 2
            extreme = np.concatenate([order[:ends], order[-ends:]])
            found = _beside_noise(labels, partial(_at_median, scores, extreme), rng)
            readings.append({"kept": len(extreme), **found})
        result |= {key: readings[0][key] for key in ("accuracy", "chance", "chance_high")} | {"second_round": readings}
    halves = split(each, each, rng)
    known = blind_scores([one.text for one in mine], [one.text for one in theirs], halves)
    result["blind_auc"] = auc(*known)
    result["blind_accuracy"] = _in_hindsight(np.concatenate(known), order, labels)
    return result


def generated_like(value: str, rng: np.random.Generator) -> str:
    """A random value of the same format: digits become digits, letters letters of the same case, and the rest stays.

    It differs from the value, unless there is nothing to vary. Letters beyond ASCII become others of their own block.
    """
    choices = [_alike(character) for character in value]
    if all(len(some) == 1 for some in choices):
        return value
    while True:
        made = "".join(some[int(rng.integers(len(some)))] for some in choices)
        if made != value:
            return made


def _alike(character: str) -> str:
    if not (character.isalpha() or character.isdecimal()):
        return character
    start = ord(character) & ~0x7F  # ASCII is the first block of 128
    kind = character.isdecimal(), character.isupper(), character.islower()
    block = [chr(code) for code in range(start, start + 128) if chr(code).isalpha() or chr(code).isdecimal()]
    return "".join(one for one in block if (one.isdecimal(), one.isupper(), one.islower()) == kind)


def _perplexities(model: Any, candidates: Sequence[Candidate], tick: Tick) -> Floats:
    scored = score_rows(model, [one.row for one in candidates], tick=tick)
    if any(not len(one.nats) for one in scored):
        raise BadInput("a candidate has no token that counts, so that it has no perplexity; leave it out")
    return np.exp(np.minimum([one.nats.mean() for one in scored], 600.0))


def _beside_noise(labels: Flags, count: Callable[[Flags], float], rng: np.random.Generator) -> dict[str, float]:
    """An accuracy, and the mean and the 97.5 % point of what shuffled labels get by the same counting."""
    noise = [count(rng.permutation(labels)) for _ in range(SHUFFLES)]
    return {
        "accuracy": count(labels),
        "chance": float(np.mean(noise)),
        "chance_high": float(np.percentile(noise, 97.5)),
    }


def _in_hindsight(scores: Floats, order: Ints, labels: Flags) -> float:
    mine, theirs = scores[labels], scores[~labels]
    return balanced_accuracy(mine, theirs, best_threshold(mine, theirs))


def _at_median(scores: Floats, order: Ints, labels: Flags) -> float:
    """How many are right if the upper half by score, in this order, is called members."""
    guess = np.arange(len(order)) >= len(order) // 2
    return float((labels[order] == guess).mean())


def _of_groups(scores: Floats, labels: Flags, preset: Preset, rng: np.random.Generator) -> float:
    mine, theirs = (
        group_sums(scores[None], np.flatnonzero(labels == side), preset.size, preset.groups, rng)[0]
        for side in (True, False)
    )
    return balanced_accuracy(mine, theirs, best_threshold(mine, theirs))
