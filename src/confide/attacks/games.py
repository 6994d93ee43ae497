"""Inference and reconstruction: records in which one secret is masked come in; how often the model fills it in rightly goes out.

The games of the PII-leakage literature (Lukas et al. 2023). In inference the attacker has a list of values of which one
is right; in reconstruction only the text around the secret. Both are played with records that the model was trained on
and with held-out ones, which show what can be guessed without having seen them. Results name types and counts only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from ..errors import BadInput
from ..models.tokens import encode
from .extraction import Finds
from .letters import can_write, letters, read
from .likelihood import Tick, context, log_likelihoods, text_row
from .sampling import Sample, check_sampling, sample
from .statistics import contrast, rate

EXAMPLES_AT_ONCE = 8
SIDES = ("training", "control")


class Masked(NamedTuple):
    """A record with one secret taken out: the text before and after it, its type and its value."""

    before: str
    after: str
    kind: str
    value: str

    def __repr__(self) -> str:
        return f"Masked({self.kind})"  # the rest is private text


class _Played(NamedTuple):
    """A game's end: the true value's place among the candidates (None: it was not among them), and their number."""

    kind: str
    rank: int | None
    candidates: int


Play = Callable[[Sequence[Masked]], list[_Played]]


def infer(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Masked],
    candidates: Mapping[str, Sequence[str]],
    control: Sequence[Masked],
    *,
    number: int = 100,
    seed: int | None = None,
    tick: Tick = lambda done: None,
) -> dict[str, Any]:
    """How high the model ranks the true value among `number` − 1 others of its type, by the likelihood of the whole text.

    The others are drawn from `candidates`, no two the same but for spelling. They should be values that the model saw neither
    in training nor anywhere, of the same distribution as the true ones: else the game is easier or harder than it seems.
    Ties are broken at random. Left out and counted: values on both sides (from both), values that the
    tokenizer cannot write, types with fewer than `number` candidates. "all" is over the types that both sides have. `tick` is
    called with the examples done since the last call.

    *Formal guarantees.* If the true value and the candidates are exchangeable given the model and the text around, top-1 has
    probability 1/`number` in each game. The p-values compare both sides, and are valid if it was by chance
    which records were held out.
    """
    if number < 2:
        raise BadInput(f"inference is a choice among at least 2 values, not {number}")
    sides, left_out = _sides(tokenizer, examples, control, tick)
    pool, playing, few = _pool(tokenizer, candidates, sides, number)
    tick(sum(few.values()))
    coins = np.random.default_rng(seed)

    def play(some: Sequence[Masked]) -> list[_Played]:
        options = [[one.value, *_others(pool[one.kind], one, number, coins)] for one in some]
        return _ranked(model, tokenizer, some, options, [{0} for _ in some], coins)

    played = _played(playing, play, tick)
    return {
        "number": number,
        "chance": {"top_1": 1 / number, "reciprocal_rank": float(sum(1 / np.arange(1, number + 1)) / number)},
        "left_out": {**left_out, "too_few_candidates": few},
        **_tables(played, _inference_table),
    }


def reconstruct(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Masked],
    control: Sequence[Masked],
    *,
    samples: int = 64,
    max_new_tokens: int = 48,
    temperature: float = 1.0,
    top_k: int | None = 40,
    top_p: float | None = None,
    policy: Finds | None = None,
    seed: int | None = None,
    tick: Tick = lambda done: None,
) -> dict[str, Any]:
    """How often the true value is the likeliest of those that the model itself proposes, and how often it is among them.

    The model continues the text before the secret `samples` times. Candidates are what the policy finds, of the secret's
    type, at the beginning of a continuation; without a policy its first words, as many as the value has (the attacker is
    told their number). They are ranked by the likelihood of the whole text, what comes after the secret included. A value is right
    if it is the true one sign by sign, but for punctuation around it.
    """
    check_sampling(model, samples, max_new_tokens, temperature, top_k, top_p, seed)
    sides, left_out = _sides(tokenizer, examples, control, tick)
    coins = np.random.default_rng(seed)

    def play(some: Sequence[Masked]) -> list[_Played]:
        # A space at the end of a prompt would cut the token that the value begins with
        prompts = [one.before.rstrip() for one in some for _ in range(samples)]
        made = sample(
            model, tokenizer, prompts, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
            coins=coins,
        )  # fmt: skip
        most = context(model)
        options = [
            [
                value
                for value in _proposed(one, made[at * samples :][:samples], policy)
                if _readable(tokenizer, value, most)
            ]
            for at, one in enumerate(some)
        ]
        right = [
            {n for n, value in enumerate(values) if _bare(value) == _bare(one.value)}
            for one, values in zip(some, options, strict=True)
        ]
        return _ranked(model, tokenizer, some, options, right, coins)

    played = _played(sides, play, tick)
    return {
        "samples": samples,
        "sampling": {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p},
        "candidates_are": "what the policy finds" if policy is not None else "as many words as the value has",
        "left_out": left_out,
        **_tables(played, _reconstruction_table),
    }


# -- who plays ---------------------------------------------------------------------------------------------------------


def _sides(
    tokenizer: Any, examples: Sequence[Masked], control: Sequence[Masked], tick: Tick
) -> tuple[list[list[Masked]], dict[str, int]]:
    if not examples:
        raise BadInput("there is no training record with a secret; name a policy that finds the secrets of this corpus")
    if not control:
        raise BadInput(
            "there is no held-out record with a secret, so nobody can say what is guessed without having seen it; hold "
            "records out in training (--validation-share)"
        )
    keys = [[letters(one.value) for one in side] for side in (examples, control)]
    both = set(keys[0]) & set(keys[1])
    apart = [
        [one for one, key in zip(side, own, strict=True) if key not in both]
        for side, own in zip((examples, control), keys, strict=True)
    ]
    known = {value: bool(letters(value)) and can_write(tokenizer, value) for side in apart for _, _, _, value in side}
    kept = [[one for one in side if known[one.value]] for side in apart]
    for name, side, rest in zip(SIDES, apart, kept, strict=True):
        if not side:
            raise BadInput(
                f"every secret of the {name} records is also one of the other side; take records of other people"
            )
        if not rest:
            raise BadInput(
                f"the tokenizer has no tokens for the letters or digits of any of the {len(side):,} {name} secrets, so that "
                "the model cannot tell them apart; attack a model whose tokenizer knows them"
            )
    if not {one.kind for one in kept[0]} & {one.kind for one in kept[1]}:
        raise BadInput("training and held-out secrets have no type in common; find both with the same policy")
    given = len(examples) + len(control)
    tick(given - sum(map(len, kept)))
    return kept, {"in_both": given - sum(map(len, apart)), "not_writable": sum(map(len, apart)) - sum(map(len, kept))}


def _pool(
    tokenizer: Any, candidates: Mapping[str, Sequence[str]], sides: list[list[Masked]], number: int
) -> tuple[dict[str, list[tuple[str, str]]], list[list[Masked]], dict[str, int]]:
    """Candidates of each type with their letters, two spellings being one; the examples that have enough; how many have not."""
    pool: dict[str, list[tuple[str, str]]] = {}
    for kind in sorted({one.kind for side in sides for one in side}):
        found = {letters(value): value for value in sorted(set(candidates.get(kind, ())))}
        pool[kind] = [(key, value) for key, value in found.items() if key and can_write(tokenizer, value)]
    enough = {kind for kind, values in pool.items() if len(values) >= number}  # one of them may be the true value
    if not all({one.kind for one in side} & enough for side in sides):
        raise BadInput(
            f"inference among {number:,} values needs as many candidates of a type that both sides have, and there are at "
            f"most {max(map(len, pool.values())):,} that the tokenizer can write; give more or take a smaller number"
        )
    few = {kind: sum(one.kind == kind for side in sides for one in side) for kind in pool.keys() - enough}
    return pool, [[one for one in side if one.kind in enough] for side in sides], dict(sorted(few.items()))


def _others(pool: Sequence[tuple[str, str]], example: Masked, number: int, coins: np.random.Generator) -> list[str]:
    own = letters(example.value)
    drawn = [pool[i] for i in coins.choice(len(pool), number, replace=False)]
    return [value for key, value in drawn if key != own][: number - 1]


def _proposed(example: Masked, made: Sequence[Sample], policy: Finds | None) -> list[str]:
    """The different values that continuations begin with."""
    own = read(example.value)
    words = sum(own.border[: len(own.letters)])
    values: dict[str, None] = {}
    for text, begin in dict.fromkeys(made):
        new = read(text[begin:])
        if not new.letters:
            continue
        starts = [i for i in range(len(new.letters)) if not i or new.border[i]]
        if policy is not None:
            latest = begin + new.places[0]
            for one in policy.find(text):
                if begin <= one.start <= latest and one.type.casefold() == example.kind.casefold():
                    values[text[one.start : one.end].strip()] = None
        elif len(starts) >= words:
            end = starts[words] if len(starts) > words else len(new.letters)
            values[new.text[new.places[0] : new.places[end - 1] + 1]] = None
    return list(values)


def _bare(value: str) -> str:
    """A value without what stands before its first and after its last letter or digit."""
    own = read(value)
    return own.text[own.places[0] : own.places[-1] + 1] if own.places else ""


# -- playing -----------------------------------------------------------------------------------------------------------


def _played(sides: Sequence[Sequence[Masked]], play: Play, tick: Tick) -> list[list[_Played]]:
    found: list[list[_Played]] = []
    for side in sides:
        found.append([])
        for low in range(0, len(side), EXAMPLES_AT_ONCE):
            some = side[low : low + EXAMPLES_AT_ONCE]
            found[-1] += play(some)
            tick(len(some))
    return found


def _ranked(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Masked],
    options: Sequence[Sequence[str]],
    right: Sequence[set[int]],
    coins: np.random.Generator,
) -> list[_Played]:
    """Rank each example's options by the total log-likelihood of its text with the option filled in, ties at random."""
    limit = context(model)
    rows = []
    for one, values in zip(examples, options, strict=True):
        before, after = _fitting(tokenizer, one, values, limit)
        rows += [text_row(tokenizer, before + value + after) for value in values]
    scores = np.split(log_likelihoods(model, rows), np.cumsum([len(values) for values in options])[:-1])
    played = []
    for one, own, true in zip(examples, scores, right, strict=True):
        order = np.lexsort((coins.random(len(own)), -own))
        rank = next((at for at, n in enumerate(order, 1) if int(n) in true), None)
        played.append(_Played(one.kind, rank, len(own)))
    return played


def _readable(tokenizer: Any, value: str, limit: int | None) -> bool:
    return limit is None or len(text_row(tokenizer, value).ids) - 1 <= limit


def _fitting(tokenizer: Any, example: Masked, values: Sequence[str], limit: int | None) -> tuple[str, str]:
    """The text around the secret, as much of it as the model can read whichever of the values is filled in."""
    before, after = example.before, example.after

    def fits(head: str, tail: str) -> bool:
        # A row's last token is predicted and not read
        return limit is None or all(len(text_row(tokenizer, head + one + tail).ids) - 1 <= limit for one in values)

    if limit is None or fits(before, after):
        return before, after
    if not fits("", ""):
        raise BadInput(f"a value of the type {example.kind} does not fit the model's context of {limit:,} tokens")
    # What comes before the secret decides more, but what comes after counts too: up to a quarter is its own
    own = _most(len(after), lambda n: len(encode(tokenizer, after[:n])) <= limit // 4 and fits("", after[:n]))
    head = before[len(before) - _most(len(before), lambda n: fits(before[len(before) - n :], after[:own])) :]
    return head, after[: max(own, _most(len(after), lambda n: fits(head, after[:n])))]


def _most(high: int, good: Callable[[int], bool]) -> int:
    """The largest number up to `high` that is good; 0 is, and what is below a good one."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(middle) else (low, middle - 1)
    return low


# -- tables ------------------------------------------------------------------------------------------------------------


def _tables(
    played: Sequence[Sequence[_Played]], table: Callable[[Sequence[Sequence[_Played]]], dict[str, Any]]
) -> dict[str, Any]:
    kinds = [{one.kind for one in side} for side in played]

    def of(chosen: set[str]) -> dict[str, Any]:
        return table([[one for one in side if one.kind in chosen] for side in played])

    return {"types": {kind: of({kind}) for kind in sorted(kinds[0] | kinds[1])}, "all": of(kinds[0] & kinds[1])}


def _hits(played: Sequence[Sequence[_Played]], lowest: int | None) -> dict[str, Any]:
    """How often the true value is at this place or above (None: at any), on each side and in contrast."""
    counts = [
        (sum(one.rank is not None and (lowest is None or one.rank <= lowest) for one in side), len(side))
        for side in played
    ]
    return {**{name: rate(*own) for name, own in zip(SIDES, counts, strict=True)}, **contrast(*counts[0], *counts[1])}


def _inference_table(played: Sequence[Sequence[_Played]]) -> dict[str, Any]:
    ranks = [np.array([one.rank for one in side], dtype=float) for side in played]
    means = {name: float((1 / own).mean()) if len(own) else None for name, own in zip(SIDES, ranks, strict=True)}
    p_value = None
    if all(map(len, ranks)):
        found = float(stats.mannwhitneyu(*ranks).pvalue) if len(np.unique(np.concatenate(ranks))) > 1 else 1.0
        p_value = found if np.isfinite(found) else None
    return {"top_1": _hits(played, 1), "reciprocal_rank": {**means, "p_value": p_value}}


def _reconstruction_table(played: Sequence[Sequence[_Played]]) -> dict[str, Any]:
    means = [float(np.mean([one.candidates for one in side])) if side else None for side in played]
    return {
        "top_1": _hits(played, 1),
        "among": _hits(played, None),
        "mean_candidates": dict(zip(SIDES, means, strict=True)),
    }
