"""All attacks on one model: a run in; `attacks.json` out, each attack beside its chance level and what the certificate allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import __version__
from ..accounting.events import check_number
from ..errors import BadInput, ConfideError
from ..models import load_trained
from ..models.loading import refuse_other_models
from ..models.tokens import BUILT_IN
from ..plain_yaml import CONFIG, run_config
from ..policies import load
from ..rundir import locked
from ..training.building import new_model
from ..training.run import Run
from .lines import PARTS
from .on_canaries import black_box, claimed, exposure_of, exposures, refuse_shared_coins, white_box
from .on_records import extractions, membership_of, memberships, screened_alike
from .options import Options, tried
from .output import FILE, read_attacks, refuse_contradicted, undone, write_attacks
from .outside import read_candidates, told
from .subject import Canaries, Subject

SHAREABLE = ("exposure", "audit")  # they are about invented secrets only (guarantees §7)


def attack(run: str | Path | Run, **choices: Any) -> dict[str, Any]:
    """Attack a finished run, and write what was found to its attacks.json (SENSITIVE: some of it is about real secrets).

    `choices` are those of `Options`. Raises `Contradiction`, after writing, if the audit's lower bound exceeds the
    certificate or an exposure is too large to have happened under it.
    """
    options = Options(**choices)
    folder = run.folder if isinstance(run, Run) else Path(run)
    with locked(folder, CONFIG):
        return _attack(folder, options)


def _attack(folder: Path, options: Options) -> dict[str, Any]:
    subject = Subject.open(folder)
    policy = None if options.secrets is None else load(options.secrets)
    foreign = None if options.held_out is None else screened_alike(subject, options.held_out)
    others = [Subject.open(one) for one in options.also]
    refuse_shared_coins([subject, *others])
    reference = _reference(subject, options)
    found = _header(subject.certificate, run=folder.name, method=subject.prepared.plan.options.method)
    if options.wants("exposure"):
        found["exposure"] = tried(lambda: exposures(subject, options))
    if options.wants("membership"):
        found["membership"] = tried(lambda: memberships(subject, foreign, policy, reference, options))
    if options.wants("extraction"):
        found |= extractions(subject, foreign, policy, options)
    if options.wants("audit"):
        found["audit"] = {"black_box": tried(lambda: black_box([subject, *others], reference, options))}
        if options.white_box:
            found["audit"]["white_box"] = tried(lambda: white_box(subject, options))
    return _finish(found, options, folder)


def attack_model(
    model: str | Path,
    canaries: str | Path | None = None,
    *,
    members: str | Path | None = None,
    others: str | Path | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    adjacency: str | None = None,
    **choices: Any,
) -> dict[str, Any]:
    """Attack a Hugging Face model that confide did not train, by canaries that were planted in its training text (the folder that
    `confide canaries` wrote), and by files of texts that it did (`members`) and did not (`others`) see.

    `epsilon` and `delta` are what is claimed for one record: an audit of coin-flipped canaries is held against them.
    """
    options = Options(**choices)
    if (members is None) != (others is None) or (canaries is None and members is None):
        raise BadInput("nothing to attack with: give --canaries FOLDER, or --members FILE together with --others FILE")
    if options.only is not None and "extraction" in options.only:
        raise BadInput(
            "extraction looks for the secrets of a run's private part; of another model nothing is known about them"
        )
    if (epsilon is None) != (delta is None):
        raise BadInput("a claim is an epsilon at a delta: give --claimed-epsilon and --delta together")
    if epsilon is not None and adjacency not in ("substitution", "add-remove"):
        raise BadInput(
            "what does the claimed epsilon compare? --claimed-adjacency add-remove, as in Opacus and most libraries, or substitution"
        )
    planted = None if canaries is None else Canaries.read(Path(canaries))
    if epsilon is not None and delta is not None:
        check_number("--claimed-epsilon", epsilon, 0, 1e6, low_open=False)
        check_number("--delta", delta, 0, 1, low_open=False)
    if epsilon is not None and (planted is None or planted.present is None):
        raise BadInput(
            "a claim is held against coin-flipped canaries: plant those of `confide canaries audit`, and give --canaries FOLDER"
        )
    weights, tokenizer = load_trained(model)
    reference = None if options.reference is None else _load_reference(options.reference, tokenizer)
    refuse_other_models(weights, str(model))
    found = _header(None, model=Path(model).name)
    if epsilon is not None:
        found["claim"] = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    if planted is not None and options.wants("exposure"):
        found["exposure"] = tried(lambda: exposure_of(weights, tokenizer, planted, options))
    if members is not None and others is not None and options.wants("membership"):
        mine, theirs = (read_candidates(file, weights, tokenizer) for file in (members, others))
        found["rows"] = {"members": mine[1], "others": theirs[1]}
        found["membership"] = tried(lambda: membership_of(weights, mine[0], theirs[0], None, reference, options))
        if "skipped" in found["membership"]:
            found["membership"]["skipped"] = "; ".join([found["membership"]["skipped"], *told(found["rows"])])
    if planted is not None and planted.present is not None and options.wants("audit"):
        claim = None if epsilon is None or delta is None else (epsilon, delta)
        found["audit"] = {
            "black_box": tried(lambda: claimed(weights, tokenizer, planted, reference, claim, str(adjacency), options))
        }
    return _finish(found, options, None)


def _header(certificate: dict[str, Any] | None, **of: Any) -> dict[str, Any]:
    stated = None
    if certificate is not None:
        main = certificate["guarantees"][0]
        stated = {name: main[name] for name in ("name", "epsilon", "delta", "k")}
        stated |= {
            "adjacency": certificate["adjacency"]["name"],
            "unit": certificate["unit"],
            "sampler": certificate["sampler"],
        }
    return {"confide_attacks": 1, "confide": __version__, **of, "certificate": stated, "shareable": list(SHAREABLE)}


def _finish(found: dict[str, Any], options: Options, folder: Path | None) -> dict[str, Any]:
    """Write what was found, beside what earlier attacks of other kinds found; then raise what must not pass in silence."""
    if folder is not None and (folder / FILE).exists():
        before = read_attacks(folder / FILE)
        if before["certificate"] == found["certificate"]:
            found = {**{name: part for name, part in before.items() if name in PARTS and name not in found}, **found}
    parts = (found.get("exposure", {}), *found.get("audit", {}).values())
    found["contradictions"] = [part["says"] for part in parts if part.get("contradicts")]
    found["options"] = options.to_plain()
    if folder is not None:
        write_attacks(folder / FILE, found)
    refuse_contradicted(found)
    _refuse_undone(found, options)
    return found


def _refuse_undone(found: dict[str, Any], options: Options) -> None:
    """Raise if an attack that was asked for by name, or every single one, could not be made."""
    reasons = {name: reason for name in PARTS if name in found and (reason := undone(found[name])) is not None}
    asked = [name for name in options.only or () if name in reasons]
    if asked:
        raise BadInput(f"{asked[0]} could not be attacked: {reasons[asked[0]]}")
    if reasons and all(name in reasons for name in PARTS if name in found):
        raise BadInput(f"no attack could be made; the first, {next(iter(reasons))}: {next(iter(reasons.values()))}")


def _reference(subject: Subject, options: Options) -> Any:
    """A model that never saw the private part: the one that is named, or the pretrained one that training began with."""
    if options.reference is not None:
        _refuse_knowing(options.reference, subject)
        return _load_reference(options.reference, subject.tokenizer)
    plan = subject.prepared.plan
    if plan.options.from_scratch or plan.options.model.partition(":")[0] in BUILT_IN:
        return None
    try:
        return new_model(plan, subject.tokenizer)[0]
    except ConfideError:  # it lies no longer where it did
        return None


def _refuse_knowing(name: str, subject: Subject) -> None:
    """Raise if the reference is a run on the same screened records, which knows the very secrets and coins."""
    if not (Path(name) / CONFIG).is_file():
        return
    if run_config(Path(name)).get("digest") == subject.screened.manifest["digest"]:
        raise BadInput(
            f"{name} was trained on the very records that are attacked, so that it is no reference; name a model that never saw "
            "the private part"
        )


def _load_reference(name: str, tokenizer: Any) -> Any:
    folder = Path(name)
    folder = folder / "model" if (folder / "model" / "config.json").is_file() else folder
    model, other = load_trained(folder)
    if other.get_vocab() != tokenizer.get_vocab():
        raise BadInput(f"{name}: the reference model has another tokenizer, so that their likelihoods do not compare")
    return model
