"""Attacks on the private part itself: a run in; membership, extraction, inference and reconstruction out, beside held-out records."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from ..policies import Policy
from ..screening.screened import Screened
from .candidates import FEWEST, Candidate
from .extraction import extract
from .games import Masked, infer, reconstruct
from .letters import letters
from .likelihood import text_row
from .membership import membership
from .options import Options, tried
from .protocols import PRESETS, generated_like, protocol
from .subject import Place, Subject

GROUP = 20
MORE_HELD = (
    "train with a larger --validation-share (and without --validation), or name a corpus of other documents that was screened in the "
    "same way with --held-out DIR"
)
NO_COIN = "which records were held out was no coin between a secret and its mask"


def memberships(
    subject: Subject, foreign: Screened | None, policy: Policy | None, reference: Any, options: Options
) -> dict[str, Any]:
    """Private records that were trained on against held-out ones, as training saw them."""
    rng = np.random.default_rng(options.seed)
    if not subject.screened.manifest["private"]:
        raise BadInput(
            "the private part is empty, so that there is nothing to infer; screen with a policy that finds the secrets, and train again"
        )
    mine, theirs = subject.alone(foreign)
    trained = subject.trained[mine[subject.trained]]
    others = subject.held[mine[subject.held]] if foreign is None else np.flatnonzero(theirs)
    if not len(subject.held if foreign is None else theirs):
        raise BadInput(f"no private record was held out: {MORE_HELD}")
    if len(trained) < FEWEST or len(others) < FEWEST:
        raise BadInput(
            f"of the private records only {len(trained):,} that were trained on and {len(others):,} that were held out have a text "
            f"that no other has, and each side needs {FEWEST}: {MORE_HELD}"
        )
    members, classes = subject.candidates(_some(trained, options.samples, rng))
    held, held_classes = subject.candidates(_some(others, options.samples, rng), foreign)
    labels = None if subject.writes_text else (classes, held_classes)
    found = membership_of(subject.model, members, held, labels, reference, options)
    if options.papers and subject.writes_text:
        found["papers"] = _protocols(subject, policy, rng, options)
    repeated = len(subject.trained) + len(subject.held) - int(mine[subject.trained].sum() + mine[subject.held].sum())
    return {**found, "view": subject.view, "repeated": repeated, "ceiling": None, "no_ceiling": NO_COIN}


def membership_of(
    model: Any, members: list[Candidate], others: list[Candidate], labels: Any, reference: Any, options: Options
) -> dict[str, Any]:
    """Every score of members against others, with groups where each side has enough for them. `labels`: of a classifier, by side."""
    passes = 1 if reference is None else 2
    tick = options.progress("membership", passes * (len(members) + len(others)))
    half = min(len(members), len(others)) // 2
    return membership(
        model, members, others, reference=reference, labels=labels, group=GROUP if half >= 2 * GROUP else 0, seed=options.seed, tick=tick
    )  # fmt: skip


def screened_alike(subject: Subject, folder: str) -> Screened:
    """Another corpus to take held-out records from; refused unless it was screened as the run's own was, and is not that one."""
    other = Screened.open(folder)
    for name in ("unit", "policy", "conservative", "max_words"):
        if other.manifest[name] != subject.screened.manifest[name]:
            raise BadInput(
                f"{folder} was screened with another {name} than the run's corpus: its records are of another kind; screen it as that one was"
            )
    if other.manifest["digest"] == subject.screened.manifest["digest"]:
        raise BadInput(f"{folder} is the corpus that the run was trained on; held-out records must not be among them")
    return other


def _protocols(subject: Subject, policy: Policy | None, rng: np.random.Generator, options: Options) -> dict[str, Any]:
    """The papers' games: secrets of the training text, in their place, against random ones of the same format."""
    places = subject.secrets(_some(subject.trained, 20 * options.samples, rng), policy)
    chosen = [places[i].masked for i in rng.permutation(len(places))[:1000]]
    sides: list[list[Candidate]] = [[], []]
    for one in chosen:
        for side, value in zip(sides, (one.value, generated_like(one.value, rng)), strict=True):
            text = one.before + value + one.after
            side.append(Candidate(text_row(subject.tokenizer, text), text))
    return {
        name: tried(lambda name=name: protocol(name, subject.model, *sides, seed=options.seed))  # type: ignore[misc]
        for name in PRESETS
    }


def extractions(subject: Subject, foreign: Screened | None, policy: Policy | None, options: Options) -> dict[str, Any]:
    """What the model writes by itself, and what it says about secrets whose place is known; beside held-out ones."""
    names = ("extraction", "inference", "reconstruction")
    rng = np.random.default_rng(options.seed)
    try:
        subject.must_write_text()
        rows = subject.held if foreign is None else np.arange(foreign.manifest["private"])
        trained, held = _own(subject.secrets(subject.trained, policy), subject.secrets(rows, policy, foreign))
        if not trained:
            raise BadInput(
                "no secret was found in the private records; name what the secrets are with --secrets POLICY"
            )
        if not held:
            raise BadInput(f"no held-out record holds a secret of its own to compare with: {MORE_HELD}")
    except BadInput as error:
        return {name: {"skipped": str(error)} for name in names}
    model, tokenizer, seed = subject.model, subject.tokenizer, options.seed
    few = max(20, options.samples // 10)
    mine, theirs = _one_each(trained, few, rng), _one_each(held, few, rng)
    pool = {kind: sorted(values) for kind, values in _values(held).items()}
    return {
        "extraction": {
            "without_prompt": tried(lambda: extract(
                model, tokenizer, _values(trained), _values(held), samples=options.samples, policy=policy, seed=seed,
                owners={place.masked.value: place.group for place in [*trained, *held]},
                tick=options.progress("extraction", options.samples), found=options.show,
            )),
            "with_prompt": tried(lambda: _prompted(subject, trained, held, policy, rng, options)),
        },
        "inference": tried(lambda: infer(
            model, tokenizer, mine, pool, theirs, number=_choices(pool), seed=seed,
            tick=options.progress("inference", len(mine) + len(theirs)),
        )),
        "reconstruction": tried(lambda: reconstruct(
            model, tokenizer, mine, theirs, samples=32, policy=policy, seed=seed,
            tick=options.progress("reconstruction", len(mine) + len(theirs)),
        )),
    }  # fmt: skip


def _prompted(
    subject: Subject,
    trained: list[Place],
    held: list[Place],
    policy: Policy | None,
    rng: np.random.Generator,
    options: Options,
) -> dict[str, Any]:
    """The text before a secret as the prompt: equally many secrets of both sides, one a dialogue, each asked for equally often."""
    number = min(len({one.group for one in trained}), len({one.group for one in held}), options.samples // 2)
    sides = [_one_each(some, number, rng) for some in (trained, held)]
    asked = [one for pair in zip(*sides, strict=True) for one in pair]
    times = max(1, options.samples // len(asked))
    values = [
        {kind: {one.value for one in side if one.kind == kind} for kind in {one.kind for one in side}} for side in sides
    ]
    return extract(
        subject.model, subject.tokenizer, *values, prompts=[one.before for one in asked], samples=times * len(asked), policy=policy,
        seed=options.seed, tick=options.progress("extraction, prompted", times * len(asked)), found=options.show,
    )  # fmt: skip


def _own(trained: list[Place], held: list[Place]) -> tuple[list[Place], list[Place]]:
    """The secrets whose value stands in one dialogue only: of one that stands in two, chance did not decide its side alone."""
    groups: dict[str, set[str]] = {}
    for one in (*trained, *held):
        groups.setdefault(letters(one.masked.value), set()).add(one.group)
    mine, theirs = ([one for one in side if len(groups[letters(one.masked.value)]) == 1] for side in (trained, held))
    return mine, theirs


def _values(places: list[Place]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in places:
        found.setdefault(one.masked.kind, set()).add(one.masked.value)
    return found


def _one_each(places: list[Place], most: int, rng: np.random.Generator) -> list[Masked]:
    """Secrets at random, one of a dialogue: dialogues were held out as a whole, and are what a p-value may count."""
    found: dict[str, Masked] = {}
    for i in rng.permutation(len(places)):
        found.setdefault(places[i].group, places[i].masked)
    return list(found.values())[:most]


def _choices(pool: dict[str, list[str]]) -> int:
    """How many values a secret is ranked among: a hundred, or fewer if most types have fewer held-out values."""
    sizes = sorted(map(len, pool.values()))
    typical = sizes[len(sizes) // 2] if sizes else 0
    return next((number for number in (100, 20, 10) if typical > number), 5)


def _some(rows: NDArray[np.int64], most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.sort(rng.permutation(rows)[:most])
