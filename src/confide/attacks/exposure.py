"""Exposure: how far up a planted secret stands among all values that it could have had. A model and canaries come in;
ranks, exposures, their chance levels and intervals go out, by the canaries' positions and never by their values.

A candidate is scored by the total log-likelihood of its tokens (`spaces` says which they are).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from ..accounting.ceilings import chance_exposure
from ..errors import BadInput, Refused
from .likelihood import Row, Tick, log_likelihoods
from .spaces import Space, Tokenised, tokenise, tokenise_all
from .statistics import Floats, clopper_pearson
from .tree import AGREE, ScoredTree, Tree, build, check_fits, score

WAYS = ("auto", "exact", "sampled")
TIE = 1e-6  # of a score: closer ones differ by rounding only
FEW = 10  # fewer samples above a canary say little about its rank
DRAWS = 200  # of the bootstrap
SIMULATED = 20_000  # draws of ranks where a small space makes them coarse
NORMALISED = (
    "perplexity per token of the whole text, as in the papers; where secrets take unequal numbers of tokens, this is not "
    "the order of their likelihoods"
)


def exposure(
    model: Any,
    tokenizer: Any,
    space: Space,
    secrets: Sequence[str],
    *,
    way: str = "auto",
    normalised: bool = False,
    most: int = 4_000_000,
    samples: int = 20_000,
    seed: int | None = None,
    tick: Tick = lambda done: None,
) -> dict[str, Any]:
    """The exposure log2|R| − log2 rank of each secret, their mean and maximum, beside what chance gives.

    `way`: "exact" ranks a secret among all candidates, "sampled" estimates the rank from random ones; "auto" is exact up
    to a space of `most`. `normalised` ranks by perplexity per token of the whole text, as the papers do. `tick` is told
    how many nodes of the tree were done since it was last called.

    *Formal guarantees.* The place among ties is drawn at random: if a secret is uniform and the model independent of it,
    its exact rank is uniform, whatever the model and the ranking (guarantees §8). Chance levels say nothing of a secret
    that somebody chose: untrained models prefer those that take few tokens.
    """
    if way not in WAYS:
        raise BadInput(f"way must be one of {', '.join(WAYS)}, got {way!r}")
    if not secrets:
        raise BadInput("there is no canary to rank; plant some with --canaries")
    if way == "exact" and space.size > most:
        raise Refused(
            f"the space holds {space.size:,} candidates, more than the {most:,} that are ranked one by one; take "
            "way='sampled', a shorter slot, or a larger `most`"
        )
    if samples < 100:
        raise BadInput(f"an estimate needs at least 100 samples, not {samples}")
    rng = np.random.default_rng(seed)
    exact = way == "exact" or (way == "auto" and space.size <= most)
    rank = _exact if exact else _sampled
    found, scored = rank(model, tokenizer, space, secrets, normalised, samples, rng, tick)
    return {
        "space": space.size,
        "bits": math.log2(space.size),
        "way": "exact" if exact else "sampled",
        "samples": None if exact else samples,
        "ranking": NORMALISED if normalised else "total log-likelihood",
        "engine": scored.engine,
        "nodes": scored.nodes,
        **summary(found, space.size),
    }


def summary(found: Sequence[dict[str, Any]], space: int) -> dict[str, Any]:
    """Mean and largest exposure of some ranked canaries, beside what chance gives for as many."""
    exposures = np.array([one["exposure"] for one in found])
    return {
        "canaries": list(found),
        "number": len(found),
        "mean": float(exposures.mean()),
        "mean_interval": _student(exposures, math.log2(space)),
        "max": float(exposures.max()),
        "chance": chance(space, len(found)),
    }


def chance(space: int, canaries: int) -> dict[str, Any]:
    """What a model that knows nothing shows: the expected mean and maximum, and where 95 % of them lie."""
    bits = math.log2(space)
    tails = np.array([0.975, 0.025])
    if space >= 10_000:  # −log2 of a uniform number is exponential, and the sum of such is gamma distributed
        mean = np.minimum(stats.gamma.ppf(1 - tails, canaries) / (canaries * math.log(2)), bits)
    else:
        rng, total = np.random.default_rng(0), np.zeros(SIMULATED)
        for _ in range(canaries):
            total += bits - np.log2(rng.integers(1, space + 1, SIMULATED))
        mean = np.quantile(total / canaries, 1 - tails)
    share = -np.expm1(np.log1p(-tails) / canaries)  # of the space, up to which the smallest rank lies with that chance
    best = [bits - math.log2(max(1, math.ceil(space * float(one) - 1e-9))) for one in share]
    return {
        "mean": chance_exposure(space),
        "mean_interval": [float(limit) for limit in mean],
        "max": chance_exposure(space, canaries),
        "max_interval": best,
    }


def _student(exposures: Floats, bits: float) -> list[float] | None:
    """Where the mean over such canaries lies, with 95 % confidence if exposures were normal; None for a single one."""
    if len(exposures) < 2:
        return None
    half = stats.t.ppf(0.975, len(exposures) - 1) * exposures.std(ddof=1) / math.sqrt(len(exposures))
    return [max(0.0, float(exposures.mean() - half)), min(bits, float(exposures.mean() + half))]


# -- ranks -------------------------------------------------------------------------------------------------------------


def _exact(
    model: Any,
    tokenizer: Any,
    space: Space,
    secrets: Sequence[str],
    normalised: bool,
    samples: int,
    rng: np.random.Generator,
    tick: Tick,
) -> tuple[list[dict[str, Any]], ScoredTree]:
    """Ranks among all candidates; what is less likely than every canary is not looked at, since it changes no rank."""
    signs = space.signs(secrets)
    numbers = np.zeros(len(signs), dtype=np.int64)
    for place in range(space.length):
        numbers = numbers * len(space.alphabet) + signs[:, place]
    check_fits(model, build(*tokenise(tokenizer, space, np.unique(signs, axis=0))))  # before a million of them
    tokens = tokenise_all(tokenizer, space)
    tree = build(*tokens)
    check_fits(model, tree)
    own = log_likelihoods(model, [tree.row(int(number)) for number in numbers])
    floor = (
        -math.inf if normalised or not np.isfinite(own).all() else float(own.min() - 10 * AGREE - 10 * TIE * -own.min())
    )
    scored = score(model, tree, floor=floor, tick=tick)
    if math.isfinite(floor) and not np.isfinite(scored.totals[numbers]).all():  # rounding beyond what was allowed for
        scored = score(model, tree, tick=tick)
    scores = _per_token(model, tree, tokens, scored.totals) if normalised else scored.totals
    ordered, found = np.sort(scores), []
    for position, number in enumerate(numbers):
        above, ties = _above(ordered, float(scores[number]))
        place = 1 + above + int(rng.integers(0, ties))
        found.append(
            {"canary": position, "rank": place, "ties": ties - 1, "exposure": math.log2(space.size) - math.log2(place)}
        )
    return found, scored


def _sampled(
    model: Any,
    tokenizer: Any,
    space: Space,
    secrets: Sequence[str],
    normalised: bool,
    samples: int,
    rng: np.random.Generator,
    tick: Tick,
) -> tuple[list[dict[str, Any]], ScoredTree]:
    """Ranks estimated from random candidates, with a Clopper–Pearson interval; beyond them, from a fitted tail."""
    drawn = rng.integers(0, len(space.alphabet), (samples, space.length), dtype=np.uint8)
    signs, which = np.unique(np.concatenate([space.signs(secrets), drawn]), axis=0, return_inverse=True)
    which = which.reshape(-1)
    tokens = tokenise(tokenizer, space, signs)
    tree = build(*tokens)
    scored = score(model, tree, tick=tick)
    scores = _per_token(model, tree, tokens, scored.totals) if normalised else scored.totals
    others = scores[which[len(secrets) :]]
    ordered, bits, found = np.sort(others), math.log2(space.size), []
    for position, mine in enumerate(scores[which[: len(secrets)]]):
        above, ties = _above(ordered, float(mine))
        above += int(rng.integers(0, ties + 1))
        share = [1 + limit * (space.size - 1) for limit in clopper_pearson(above, samples)]
        # Canary and samples are exchangeable under chance, so that its place among them is uniform
        counted = min(bits, math.log2((samples + 1) / (above + 1)))
        limits = [max(0.0, bits - math.log2(share[1])), bits - math.log2(share[0])]
        tail = None if above >= FEW else _skew_normal(others, float(mine), bits, rng)
        found.append(
            {
                "canary": position,
                "above": above,
                # A model of the tail says nothing against what was counted
                "exposure": counted if tail is None else min(max(tail["exposure"], limits[0]), limits[1]),
                "counted": counted,
                "interval": limits,
                "extrapolated": tail,
            }
        )
    return found, scored


def _per_token(model: Any, tree: Tree, tokens: Tokenised, totals: Floats) -> Floats:
    """Mean log-likelihood of all tokens but bos: perplexity per token is e to its negative."""
    before = float(log_likelihoods(model, [Row(list(tree.stem))])[0])
    return (before + totals) / (len(tree.stem) - 1 + tokens.lengths)


def _above(ordered: Floats, mine: float) -> tuple[int, int]:
    """How many scores are higher than `mine`, and how many are equal to it but for rounding."""
    near = TIE * abs(mine) if math.isfinite(mine) else 0.0
    low, high = np.searchsorted(ordered, mine - near, "left"), np.searchsorted(ordered, mine + near, "right")
    return len(ordered) - int(high), int(high - low)


def _skew_normal(others: Floats, mine: float, bits: float, rng: np.random.Generator) -> dict[str, Any] | None:
    """−log2 of the tail above `mine` under a skew-normal fit (by moments) to the samples, with a bootstrap interval."""
    known = others[np.isfinite(others)]
    if len(known) < 100 or not math.isfinite(mine) or known.std() < TIE * abs(float(known.mean())):
        return None
    redrawn = [_tail(known[rng.integers(0, len(known), len(known))], mine, bits) for _ in range(DRAWS)]
    low, high = np.quantile(redrawn, [0.025, 0.975])
    return {
        "exposure": _tail(known, mine, bits),
        "interval": [float(low), float(high)],
        "model": "skew-normal fit of the sampled scores: a model of the tail, not a measurement; the interval is the fit's",
    }


def _tail(known: Floats, mine: float, bits: float) -> float:
    skew = float(np.clip(stats.skew(known), -0.99, 0.99))  # no skew-normal distribution has more
    root = abs(skew) ** (2 / 3)
    delta = math.copysign(math.sqrt(math.pi / 2 * root / (root + ((4 - math.pi) / 2) ** (2 / 3))), skew)
    scale = float(known.std()) / math.sqrt(1 - 2 * delta**2 / math.pi)
    centre = float(known.mean()) - scale * delta * math.sqrt(2 / math.pi)
    tail = float(stats.skewnorm.sf(mine, delta / math.sqrt(1 - delta**2), centre, scale))
    return min(bits, -math.log2(tail)) if tail > 0 else bits
