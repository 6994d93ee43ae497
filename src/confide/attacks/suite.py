"""All attacks on one model: a run in; `attacks.json` out, each attack beside its chance level and what the certificate allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from ..accounting.ceilings import Ceilings
from ..errors import BadInput, ConfideError, Contradiction
from ..models import load_trained
from ..models.tokens import BUILT_IN, texts_of
from ..policies import Policy, load
from ..screening.pipeline import Screened
from ..training.run import Run, new_model
from . import audit
from .candidates import FEWEST, Candidate
from .exposure import Space, exposure, summary
from .extraction import extract
from .games import Masked, infer, reconstruct
from .gradients import engine_audit
from .likelihood import text_row
from .membership import membership
from .output import write_attacks
from .protocols import PRESETS, generated_like, protocol
from .statistics import measure, split
from .subject import Canaries, Secrets, Subject

ATTACKS = ("exposure", "membership", "extraction", "audit")
SHAREABLE = ("exposure", "audit")  # they are about invented secrets only (guarantees §7)
CONTRADICTS = 0.01  # an exposure that is less likely than this under the certificate contradicts it
GROUP = 20
NO_OTHERS = (
    "no held-out private records: train with --validation-share above 0, or name a corpus that was screened in the same way with "
    "--held-out DIR"
)
NO_COIN = "no ceiling applies: which records were held out was no coin between a secret and its mask"

Progress = Callable[[str, int | None], Callable[[int], object]]  # an attack and its size in; what to call with the work done, out
Show = Callable[[str, str], object]  # a type of secret, and one that was extracted


@dataclass(frozen=True)
class Options:
    """How to attack. `secrets`: the policy that says what the private part's secrets are, if not what screening found."""

    only: tuple[str, ...] = ATTACKS
    samples: int = 1000
    reference: str | None = None
    held_out: str | None = None
    secrets: str | None = None
    papers: bool = False
    white_box: bool = False
    guesses: int | None = None
    also: tuple[str, ...] = ()
    seed: int | None = None
    progress: Progress = field(default=lambda name, total: lambda done: None, repr=False)
    show: Show | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.only or any(name not in ATTACKS for name in self.only):
            raise BadInput(f"the attacks are {', '.join(ATTACKS)}; name some of them with --only, separated by commas")
        if not 20 <= self.samples <= 10**6:
            raise BadInput(f"--samples must lie between 20 and a million, got {self.samples}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise BadInput(f"--seed must be at least 0 and below 2^63, got {self.seed}")


def attack(run: str | Path | Run, **choices: Any) -> dict[str, Any]:
    """Attack a finished run, and write what was found to its attacks.json (SENSITIVE: some of it is about real secrets).

    `choices` are those of `Options`. Raises `Contradiction`, after writing, if the audit's lower bound exceeds the
    certificate or an exposure is too large to have happened under it.
    """
    options = Options(**choices)
    folder = run.folder if isinstance(run, Run) else Path(run)
    subject = Subject.open(folder)
    found = _header(subject.certificate, run=folder.name, method=subject.prepared.plan.options.method)
    reference = _reference(subject, options)
    if "exposure" in options.only:
        found["exposure"] = _tried(lambda: _exposures(subject, options))
    if "membership" in options.only:
        found["membership"] = _tried(lambda: _memberships(subject, reference, options))
    if "extraction" in options.only:
        found |= _extractions(subject, options)
    if "audit" in options.only:
        found["audit"] = {"black_box": _tried(lambda: _black_box(subject, reference, options))}
        if options.white_box:
            found["audit"]["white_box"] = _tried(lambda: _white_box(subject, options))
    return _finish(found, folder)


def attack_model(
    model: str | Path,
    canaries: str | Path | None = None,
    *,
    members: str | Path | None = None,
    others: str | Path | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    **choices: Any,
) -> dict[str, Any]:
    """Attack a Hugging Face model that confide did not train, by canaries that were planted in its training text (the folder that
    `confide canaries` wrote), and by files of texts that it did (`members`) and did not (`others`) see.

    `epsilon` and `delta` are what is claimed for one record: an audit of coin-flipped canaries is held against them.
    """
    options = Options(**choices)
    if canaries is None and (members is None or others is None):
        raise BadInput("nothing to attack with: give --canaries FOLDER, or --members FILE and --others FILE")
    if (epsilon is None) != (delta is None):
        raise BadInput("a claim is an epsilon at a delta: give --claimed-epsilon and --delta together")
    planted = None if canaries is None else Canaries.read(Path(canaries))
    weights, tokenizer = load_trained(model)
    reference = None if options.reference is None else _load_reference(options.reference, tokenizer)
    found = _header(None, model=Path(model).name)
    if planted is not None and "exposure" in options.only:
        found["exposure"] = _tried(lambda: _exposure(weights, tokenizer, planted, options))
    if members is not None and others is not None and "membership" in options.only:
        sides = [[Candidate(text_row(tokenizer, text), text) for text in texts_of(Path(file))] for file in (members, others)]
        found["membership"] = _tried(lambda: _membership(weights, sides[0], sides[1], None, reference, options))
    if planted is not None and planted.present is not None and "audit" in options.only:
        claim = None if epsilon is None or delta is None else (epsilon, delta)
        found["audit"] = {"black_box": _tried(lambda: _claimed(weights, tokenizer, planted, reference, claim, options))}
    return _finish(found, None)


def _header(certificate: dict[str, Any] | None, **of: Any) -> dict[str, Any]:
    stated = None
    if certificate is not None:
        main = certificate["guarantees"][0]
        stated = {name: main[name] for name in ("name", "epsilon", "delta", "k")}
        stated |= {"adjacency": certificate["adjacency"]["name"], "unit": certificate["unit"], "sampler": certificate["sampler"]}
    return {"confide_attacks": 1, "confide": __version__, **of, "certificate": stated, "shareable": list(SHAREABLE)}


def _tried(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What an attack found, or why it could not be made; one that cannot be made does not keep others from being tried."""
    try:
        return make()
    except BadInput as error:
        return {"skipped": str(error)}


def _finish(found: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    parts = (found.get("exposure", {}), *found.get("audit", {}).values())
    found["contradictions"] = [part["says"] for part in parts if part.get("contradicts")]
    if folder is not None:
        write_attacks(folder / "attacks.json", found)
    if found["contradictions"]:
        raise Contradiction(found["contradictions"][0], found)
    return found


def _reference(subject: Subject, options: Options) -> Any:
    """A model that never saw the private part: the one that is named, or the pretrained one that training began with."""
    if options.reference is not None:
        return _load_reference(options.reference, subject.tokenizer)
    plan = subject.prepared.plan
    if plan.options.from_scratch or plan.options.model.partition(":")[0] in BUILT_IN:
        return None
    try:
        return new_model(plan, subject.tokenizer)[0]
    except ConfideError:  # it lies no longer where it did
        return None


def _load_reference(name: str, tokenizer: Any) -> Any:
    folder = Path(name)
    folder = folder / "model" if (folder / "model" / "config.json").is_file() else folder
    model, other = load_trained(folder)
    if other.get_vocab() != tokenizer.get_vocab():
        raise BadInput(f"{name}: the reference model has another tokenizer, so that their likelihoods do not compare")
    return model


# -- canaries ---------------------------------------------------------------------------------------------------------


def _exposures(subject: Subject, options: Options) -> dict[str, Any]:
    """Exposure of the planted canaries, and what the certificate allows."""
    subject.must_write_text()
    canaries = subject.trained_canaries()
    found = _exposure(subject.model, subject.tokenizer, canaries, options)
    ceilings, about = subject.ceilings(canaries)
    if ceilings is None:
        return {**found, "ceiling": None, "no_ceiling": about}
    return {**found, **_under(found, canaries, ceilings, about)}


def _exposure(model: Any, tokenizer: Any, canaries: Canaries, options: Options) -> dict[str, Any]:
    """Exposure of the canaries that are in the training text; of those that a coin took out, as a control."""
    space, tick = Space.of(canaries.format), options.progress("exposure", None)
    present = canaries.present or (True,) * len(canaries.secrets)
    found = exposure(model, tokenizer, space, canaries.secrets, seed=options.seed, tick=tick)
    control = [one for one, there in zip(found["canaries"], present, strict=True) if not there]
    if control:
        mine = [one for one, there in zip(found["canaries"], present, strict=True) if there]
        found |= {**summary(mine, space.size), "control": summary(control, space.size)}
    if options.papers:
        own = exposure(model, tokenizer, space, canaries.secrets, normalised=True, seed=options.seed, tick=tick)
        found["papers"] = {name: own[name] for name in ("ranking", "mean", "max", "chance", "canaries")}
    found["copies"] = max(canaries.copies)
    return found


def _under(found: dict[str, Any], canaries: Canaries, ceilings: Ceilings, about: str) -> dict[str, Any]:
    """The ceilings of exposure, and whether what was found could have happened under the certificate.

    *Formal guarantees.* Given all other canaries, one that was drawn at random is uniform over the values that they leave: under
    its mask, its rank is at most 2^-b of the space with probability at most 2^-b·|R|/(|R|−c+1). The certificate's trade-off
    turns that into the largest probability under the secret, and a union bound covers c canaries.
    """
    space, number = found["space"], len(found["canaries"])
    if not canaries.drawn:
        return {"ceiling": None, "no_ceiling": "the canaries were not drawn at random (a fixed secret, or a seed)"}
    largest = max(one.get("interval", [one["exposure"]])[0] for one in found["canaries"])
    share = min(1.0, 2.0**-largest * space / (space - number + 1))
    tail = min(1.0, number * float(ceilings.tpr(share)[0]))
    ceiling = {
        "mean": min(found["bits"], ceilings.exposure_mean(space)),
        "max": min(found["bits"], ceilings.exposure_mean(space, number)),
        "chance_of_max": tail,
        "about": about,
    }
    says = f"the certificate allows an exposure of {largest:.1f} bits with probability {tail:.2g} at most"
    return {"ceiling": ceiling, "contradicts": tail < CONTRADICTS, "says": f"{says}, and it was measured"}


def _black_box(subject: Subject, reference: Any, options: Options) -> dict[str, Any]:
    """The one-run audit on coin-flipped canaries; of several runs, if more are named."""
    subject.must_write_text()
    subjects = [subject, *(Subject.open(one) for one in options.also)]
    if len({one.screened.manifest["digest"] for one in subjects}) < len(subjects):
        raise BadInput("--also wants runs on other screenings: these share their coins, and coins must be independent")
    stated = [one.certificate for one in subjects]
    delta = max((one["delta"] for one in stated if one is not None), default=1e-5)
    runs, copies, policies = [], 1, set()
    for one in subjects:
        canaries = one.trained_canaries()
        if canaries.present is None:
            raise BadInput("no coins were flipped for the canaries: screen with --canaries audit, and train again")
        known = reference if one is subject else None
        tick = options.progress("audit", None)
        scores = audit.canary_scores(
            one.model, one.tokenizer, canaries.format, canaries.secrets, reference=known, seed=options.seed, tick=tick
        )
        runs.append((scores, canaries.present))
        copies, policies = max(copies, *canaries.copies), policies | {canaries.policy}
        if canaries.public and one.prepared.plan.public_is_public:
            stated = [None]
    found = audit.pooled(runs, delta, guesses=options.guesses, seed=options.seed)
    weakest = None if None in stated else max(stated, key=lambda one: audit.promised(one))
    covered = next(one for one in ("as-is", "missed", "found") if one in policies)  # by the weakest promise
    held = audit.against(found, weakest, policy=covered, copies=copies)
    ceilings, about = subject.ceilings(subject.trained_canaries())
    return {**held, "coins": _coins(runs[0], ceilings, about, options)}


def _coins(run: tuple[NDArray[np.float64], Sequence[bool]], ceilings: Ceilings | None, about: str, options: Options) -> dict[str, Any]:
    """Membership of coin-flipped canaries: the one game in which the certificate bounds every attack."""
    scores, present = run[0], np.array(run[1])
    mine, theirs = scores[present], scores[~present]
    rng = np.random.default_rng(options.seed)
    found = measure(mine, theirs, split(len(mine), len(theirs), rng), rng)
    if ceilings is None:
        return {**found, "ceiling": None, "no_ceiling": about}
    rates = np.geomspace(1e-3, 1, 61)
    curve = [{"fpr": float(p), "tpr_at_most": float(t)} for p, t in zip(rates, ceilings.tpr(rates), strict=True)]
    at = {f"tpr_at_{p}": float(ceilings.tpr(p)[0]) for p in (0.01, 0.001)}
    return {**found, "ceiling": {"accuracy": ceilings.accuracy(), **at, "curve": curve, "about": about}}


def _claimed(
    model: Any, tokenizer: Any, canaries: Canaries, reference: Any, claim: tuple[float, float] | None, options: Options
) -> dict[str, Any]:
    tick = options.progress("audit", None)
    scores = audit.canary_scores(
        model, tokenizer, canaries.format, canaries.secrets, reference=reference, seed=options.seed, tick=tick
    )
    delta = 1e-5 if claim is None else claim[1]
    found = audit.one_run(scores, canaries.present or (), delta, guesses=options.guesses, seed=options.seed)
    return audit.against_claim(found, claim, copies=max(canaries.copies))


def _white_box(subject: Subject, options: Options) -> dict[str, Any]:
    """The engine itself, at the rate, the noise and the number of steps of this run's last phase with noise."""
    plan = subject.prepared.plan
    if subject.certificate is None or not plan.private:
        raise BadInput("nothing was trained with noise, so that there is no engine to audit")
    if any(phase.whole_segments for phase in plan.phases):
        raise BadInput("the paper's variant of sdp makes steps of its own, which gradient canaries do not cover")
    private = list(plan.private.values())[-1]
    tick = options.progress("audit of the engine", None)
    return engine_audit(
        private, subject.certificate["delta"], guesses=options.guesses, clipping=plan.options.clipping, tick=tick
    )


# -- records ----------------------------------------------------------------------------------------------------------


def _memberships(subject: Subject, reference: Any, options: Options) -> dict[str, Any]:
    """Private records that were trained on against held-out ones, as training saw them."""
    rng = np.random.default_rng(options.seed)
    foreign = None if options.held_out is None else _screened_alike(subject, options.held_out)
    mine, theirs = subject.alone(foreign)
    trained = subject.trained[mine[subject.trained]]
    others = subject.held[mine[subject.held]] if foreign is None else np.flatnonzero(theirs)
    if not len(subject.held if foreign is None else theirs):
        raise BadInput(NO_OTHERS)
    if len(trained) < FEWEST or len(others) < FEWEST:
        raise BadInput(
            f"of the private records only {len(trained):,} that were trained on and {len(others):,} that were held out have a text "
            f"of their own, and each side needs {FEWEST}; hold out more with --validation-share, or name --held-out DIR"
        )
    members, classes = subject.candidates(_some(trained, options.samples, rng))
    held, held_classes = subject.candidates(_some(others, options.samples, rng), foreign)
    labels = None if subject.writes_text else (classes, held_classes)
    found = _membership(subject.model, members, held, labels, reference, options)
    if options.papers and subject.writes_text:
        found["papers"] = _protocols(subject, rng, options)
    repeated = len(subject.trained) + len(subject.held) - int(mine[subject.trained].sum() + mine[subject.held].sum())
    return {**found, "view": subject.view, "repeated": repeated, "ceiling": None, "no_ceiling": NO_COIN}


def _membership(
    model: Any, members: list[Candidate], others: list[Candidate], labels: Any, reference: Any, options: Options
) -> dict[str, Any]:
    passes = 1 if reference is None else 2
    tick = options.progress("membership", passes * (len(members) + len(others)))
    half = min(len(members), len(others)) // 2
    return membership(
        model, members, others, reference=reference, labels=labels, group=GROUP if half >= 2 * GROUP else 0, seed=options.seed, tick=tick
    )  # fmt: skip


def _screened_alike(subject: Subject, folder: str) -> Screened:
    other = Screened.open(folder)
    for name in ("unit", "policy", "conservative", "max_words"):
        if other.manifest[name] != subject.screened.manifest[name]:
            raise BadInput(f"{folder} was screened with another {name} than the run's corpus: its records are of another kind")
    if other.manifest["digest"] == subject.screened.manifest["digest"]:
        raise BadInput(f"{folder} is the corpus that the run was trained on; held-out records must not be among them")
    return other


def _protocols(subject: Subject, rng: np.random.Generator, options: Options) -> dict[str, Any]:
    """The papers' games: secrets of the training text, in their place, against random ones of the same format."""
    secrets = subject.secrets(_some(subject.trained, 20 * options.samples, rng), _policy(options))
    chosen = [secrets.places[i] for i in rng.permutation(len(secrets.places))[:1000]]
    sides: list[list[Candidate]] = [[], []]
    for one in chosen:
        for side, value in zip(sides, (one.value, generated_like(one.value, rng)), strict=True):
            text = one.before + value + one.after
            side.append(Candidate(text_row(subject.tokenizer, text), text))
    return {
        name: _tried(lambda name=name: protocol(name, subject.model, *sides, seed=options.seed))  # type: ignore[misc]
        for name in PRESETS
    }


def _extractions(subject: Subject, options: Options) -> dict[str, Any]:
    """What the model writes by itself, and what it says about secrets whose place is known; beside held-out ones."""
    names = ("extraction", "inference", "reconstruction")
    try:
        subject.must_write_text()
        rng = np.random.default_rng(options.seed)
        policy = _policy(options)
        trained = subject.secrets(subject.trained, policy)
        held = subject.secrets(subject.held, policy)
        if not trained.places:
            raise BadInput("no secret was found in the private records; name what the secrets are with --secrets POLICY")
        if not held.places:
            raise BadInput("no held-out record holds a secret to compare with; train with a larger --validation-share")
    except BadInput as error:
        return {name: {"skipped": str(error)} for name in names}
    model, tokenizer, seed = subject.model, subject.tokenizer, options.seed
    few = max(20, options.samples // 10)
    mine, theirs = _places(trained, few, rng), _places(held, few, rng)
    # Half of the prompts come from held-out records: a topic that only training records have would look like memory
    prompts = [one.before for side in (trained, held) for one in _places(side, options.samples // 2, rng)]
    pool = {kind: sorted(values) for kind, values in held.values.items()}
    return {
        "extraction": _tried(lambda: extract(
            model, tokenizer, trained.values, held.values, prompts=prompts, samples=options.samples, policy=policy, seed=seed,
            tick=options.progress("extraction", 2 * options.samples), found=options.show,
        )),
        "inference": _tried(lambda: infer(
            model, tokenizer, mine, pool, theirs, number=_choices(pool), seed=seed,
            tick=options.progress("inference", len(mine) + len(theirs)),
        )),
        "reconstruction": _tried(lambda: reconstruct(
            model, tokenizer, mine, theirs, samples=32, policy=policy, seed=seed,
            tick=options.progress("reconstruction", len(mine) + len(theirs)),
        )),
    }  # fmt: skip


def _choices(pool: dict[str, list[str]]) -> int:
    """How many values a secret is ranked among: a hundred, or fewer if most types have fewer held-out values."""
    sizes = sorted(map(len, pool.values()))
    typical = sizes[len(sizes) // 2] if sizes else 0
    return next((number for number in (100, 20, 10) if typical > number), 5)


def _places(secrets: Secrets, most: int, rng: np.random.Generator) -> list[Masked]:
    return [secrets.places[i] for i in rng.permutation(len(secrets.places))[:most]]


def _some(rows: NDArray[np.int64], most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.sort(rng.permutation(rows)[:most])


def _policy(options: Options) -> Policy | None:
    return None if options.secrets is None else load(options.secrets)
