"""Checkpoints: from a model, its optimizer and a position to a folder that survives any crash, and back, in place.

RUN/checkpoints/00000042/ holds what a run needs to go on after its 42nd slot: `model.safetensors`, `optimizer.safetensors`
and `state.json`. There is no pickle in it, no timestamp and no seed: the same state gives the same bytes, and coins
are fresh after a resume. The weights are not redacted in any way: a checkpoint is as SENSITIVE as the model.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from ..accounting.ledger import canonical, head_at
from ..errors import BadInput, ConfideError, Contradiction
from ..rundir import make_folder, sha256_of, swap_in, sync_folder, write_private

FORMAT = 1
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
NAME = re.compile(r"(\d{8,})(\.replaced)?")
# How an optimizer computes, not what: a run may go on where these differ
IMPLEMENTATION = ("params", "fused", "foreach", "capturable", "differentiable")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were found whole: its place, and everything but the tensors."""

    path: Path
    slots: int
    state: dict[str, Any]
    ledger: dict[str, Any] | None
    fingerprint: str | None
    optimizer: dict[str, Any] | None
    trained_only: bool
    warnings: tuple[str, ...] = ()


def fingerprint(config: Mapping[str, Any]) -> str:
    """A digest of public settings, by which a resumed run knows that it is the same run."""
    return hashlib.sha256(canonical(dict(config)).encode()).hexdigest()


def save(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizer | None,
    state: Mapping[str, Any],
    ledger: Mapping[str, Any] | None = None,
    keep: int = 2,
    *,
    slots: int,
    fingerprint: str | None = None,
    trained_only: bool = False,
) -> Path:
    """Write FOLDER/`slots` and remove all but the `keep` newest; returns its path.

    `state` is plain data (position, schedule, annealing), `ledger` the writer's length and head at this moment. With
    `trained_only` frozen parameters are left out, for LoRA: the base model must then come from where it came from.

    *Formal guarantees.* Everything is on disk before the folder gets its name, and older checkpoints are removed only
    after that: whenever the process is killed, the newest whole checkpoint is this one or the one before it. A write
    that fails (a full disk) removes its own remains, leaves older checkpoints alone and raises.
    """
    if keep < 1 or slots < 0:
        raise BadInput(f"a checkpoint needs keep ≥ 1 and slots ≥ 0, got keep={keep} and slots={slots}")
    path = folder / f"{slots:08d}"
    partial = folder / f"{path.name}.partial"
    groups, moments = (None, {}) if optimizer is None else _flatten(model, optimizer)
    body: dict[str, Any] = {
        "confide_checkpoint": FORMAT,
        "slots": slots,
        "state": dict(state),
        "ledger": None if ledger is None else {"length": int(ledger["length"]), "head": str(ledger["head"])},
        "fingerprint": fingerprint,
        "optimizer": groups,
        "trained_only": trained_only,
    }
    try:
        canonical(body)
    except (TypeError, ValueError):
        raise BadInput("the state of a checkpoint must be plain JSON values without NaN or infinity") from None
    try:
        make_folder(folder, 0o700)
        for stale in folder.glob("*.partial"):  # of a save that was killed
            shutil.rmtree(stale)
        make_folder(partial, 0o700)
        _write_tensors(partial / MODEL, _tensors(model, trained_only))
        _write_tensors(partial / OPTIMIZER, moments)
        body["files"] = {name: sha256_of(partial / name) for name in (MODEL, OPTIMIZER)}
        write_private(partial / STATE, canonical({**body, "hash": _hash(body)}))
        sync_folder(partial)
        swap_in(partial, path)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not isinstance(error, OSError | SafetensorError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfideError(
            f"cannot write the checkpoint {path}: {reason}; older checkpoints are intact. Make room on the disk, then "
            "resume the run"
        ) from None
    _prune(folder, slots, keep)
    return path


def latest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a folder, None if there is none at all.

    Damaged newer ones are passed over and named in `warnings`. If there are only damaged ones this raises, since
    starting over in silence would spend the budget twice.
    """
    warnings: list[str] = []
    for _, path in sorted(_all(folder), reverse=True):
        try:
            return replace(_read(path), warnings=tuple(warnings))
        except _Damaged as damage:
            warnings.append(f"the checkpoint {path} is damaged ({damage}) and was passed over")
    if warnings:
        raise BadInput(
            f"no checkpoint under {folder} can be used: {'; '.join(warnings)}. Bring one back from a backup, or start a new "
            "run in another folder; what this run's ledger holds stays spent"
        )
    return None


def load(
    checkpoint: Checkpoint,
    model: nn.Module,
    optimizer: Optimizer | None,
    *,
    ledger_path: Path | None,
    fingerprint: str | None = None,
) -> None:
    """Put a checkpoint's tensors into a model and an optimizer, in place.

    *Formal guarantees.* Nothing is restored unless the ledger still begins with the very lines it had when the
    checkpoint was written, so no step that the weights contain can go uncounted (guarantees §7). Lines after those are
    steps that will be replayed, and stay counted. Names, shapes and types are all checked before the first tensor changes.
    """
    check_ledger(checkpoint, ledger_path)
    if fingerprint is not None and fingerprint != checkpoint.fingerprint:
        raise BadInput(
            f"the checkpoint {checkpoint.path} belongs to a run with other settings; resume with the settings the run was "
            "started with, or start a new run in another folder"
        )
    saved, own = _load(checkpoint.path / MODEL), _tensors(model, checkpoint.trained_only)
    _compare(checkpoint.path, saved, own)
    plain = _unflatten(checkpoint, model, optimizer) if optimizer is not None else None
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])
    if optimizer is not None and plain is not None:
        optimizer.load_state_dict(plain)


def check_ledger(checkpoint: Checkpoint, ledger_path: Path | None) -> None:
    """Raise `Contradiction` unless the ledger still holds every line it had when the checkpoint was written."""
    there = ledger_path is not None and ledger_path.exists()
    recorded = checkpoint.ledger
    if recorded is None:
        if there:
            raise Contradiction(
                f"the checkpoint {checkpoint.path} records no ledger but {ledger_path} exists: it is not this run's checkpoint"
            )
        return
    if ledger_path is None or not there:
        raise Contradiction(
            f"the checkpoint {checkpoint.path} records a ledger of {recorded['length']:,} lines, and the ledger is gone: the "
            "steps it counted would be forgotten. Bring back the ledger; without it the run cannot go on"
        )
    if head_at(ledger_path, recorded["length"]) != recorded["head"]:
        raise Contradiction(
            f"the ledger {ledger_path} is not the one that the checkpoint {checkpoint.path} was written beside: it was replaced, "
            "and steps already taken would be forgotten. Bring back the ledger; without it the run cannot go on"
        )


class _Damaged(Exception):
    """Files that are not what was written."""


def _read(path: Path) -> Checkpoint:
    try:
        text = (path / STATE).read_bytes()
    except OSError as error:
        raise _Damaged(f"{STATE}: {error.strerror}") from None
    try:
        body = json.loads(text)
        stated = body.pop("hash")
        whole = stated == _hash(body) and canonical({**body, "hash": stated}).encode() == text
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise _Damaged(f"{STATE} was changed or cut off")
    stated = body.get("confide_checkpoint")
    if type(stated) is int and stated > FORMAT:
        raise BadInput(
            f"the checkpoint {path} has format {stated}, this confide reads {FORMAT}; install a newer confide"
        )
    if stated != FORMAT or not _shaped(body):
        raise _Damaged(f"{STATE} holds something else than a checkpoint")
    for name, digest in body["files"].items():
        try:
            found = sha256_of(path / name)
        except OSError as error:
            raise _Damaged(f"{name}: {error.strerror}") from None
        if found != digest:
            raise _Damaged(f"{name} was changed or cut off")
    fields = ("slots", "state", "ledger", "fingerprint", "optimizer", "trained_only")
    return Checkpoint(path, **{name: body[name] for name in fields})


def _shaped(body: Mapping[str, Any]) -> bool:
    """Whether a state has the parts that `save` writes: files that it does not name itself are never opened."""
    try:
        ledger, optimizer = body["ledger"], body["optimizer"]
        groups = [] if optimizer is None else optimizer["groups"]
        scalars = {} if optimizer is None else optimizer["scalars"]
        return (
            set(body["files"]) == {MODEL, OPTIMIZER}
            and type(body["slots"]) is int
            and isinstance(body["state"], dict)
            and (ledger is None or (type(ledger["length"]) is int and isinstance(ledger["head"], str)))
            and isinstance(body["fingerprint"], str | None)
            and isinstance(body["trained_only"], bool)
            and (optimizer is None or isinstance(optimizer["kind"], str))
            and all(
                isinstance(group["settings"], dict) and all(isinstance(name, str) for name in group["names"])
                for group in groups
            )
            and all(isinstance(fields, dict) for fields in scalars.values())
        )
    except (KeyError, TypeError, AttributeError):
        return False


def _tensors(model: nn.Module, trained_only: bool) -> dict[str, Tensor]:
    """The tensors of a model by name; one that has several names (tied weights) goes by its first."""
    model = _bare(model)
    frozen = {
        name for name, p in model.named_parameters(remove_duplicate=False) if trained_only and not p.requires_grad
    }
    found: dict[str, Tensor] = {}
    seen = set()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise BadInput(
                f"the model keeps something under {name!r} that is not a tensor; a checkpoint cannot hold it"
            )
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        if name not in frozen and (tensor.numel() == 0 or place not in seen):
            seen.add(place)
            found[name] = tensor
    return found


def _bare(model: nn.Module) -> nn.Module:
    """The model itself, without what torch wraps around it for several processes or compilation."""
    wrapper = nn.parallel.DistributedDataParallel
    while inner := model.module if isinstance(model, wrapper) else getattr(model, "_orig_mod", None):
        model = inner
    return model


def _names(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """The names of the parameters in each of an optimizer's groups."""
    known = {id(parameter): name for name, parameter in _bare(model).named_parameters()}
    groups = [[known.get(id(p)) for p in group["params"]] for group in optimizer.param_groups]
    if any(name is None for group in groups for name in group):
        raise BadInput(
            "the optimizer holds a parameter that the model does not have; make it from this model's parameters"
        )
    return [[str(name) for name in group] for group in groups]


def _flatten(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """An optimizer as plain values, and its tensors as FIELD:PARAMETER."""
    groups: list[dict[str, Any]] = []
    scalars: dict[str, dict[str, Any]] = {}
    tensors: dict[str, Tensor] = {}
    for names, group in zip(_names(model, optimizer), optimizer.param_groups, strict=True):
        settings = {k: v.item() if isinstance(v, Tensor) else v for k, v in group.items() if k not in IMPLEMENTATION}
        groups.append({"names": names, "settings": settings})
        for name, parameter in zip(names, group["params"], strict=True):
            for field, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{field}:{name}"] = value
                else:
                    scalars.setdefault(name, {})[field] = value
    return {"kind": type(optimizer).__name__, "groups": groups, "scalars": scalars}, tensors


def _unflatten(checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """What `Optimizer.load_state_dict` wants, after a check that it fits."""
    plain, names = checkpoint.optimizer, _names(model, optimizer)
    if plain is None:
        raise BadInput(f"the checkpoint {checkpoint.path} was written without an optimizer; a run cannot go on from it")
    if plain["kind"] != type(optimizer).__name__ or [group["names"] for group in plain["groups"]] != names:
        raise BadInput(
            f"the checkpoint {checkpoint.path} was written with {plain['kind']} on {sum(len(g['names']) for g in plain['groups'])} "
            f"parameters, this run has {type(optimizer).__name__} on {sum(map(len, names))}, or in another order: use the optimizer "
            "and model the run was started with"
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    number = {name: index for index, name in enumerate(name for group in names for name in group)}
    state: dict[int, dict[str, Any]] = {}
    moments = _load(checkpoint.path / OPTIMIZER)
    if not {*plain["scalars"], *(key.partition(":")[2] for key in moments)} <= set(number) or not all(
        _alike(saved["settings"], {k: v for k, v in group.items() if k not in IMPLEMENTATION})
        for saved, group in zip(plain["groups"], optimizer.param_groups, strict=True)
    ):
        raise BadInput(
            f"the optimizer's state in the checkpoint {checkpoint.path} is not one of this run's {plain['kind']}: use the "
            "optimizer and model the run was started with, or bring the checkpoint back from a backup"
        )
    for name, fields in plain["scalars"].items():
        state.setdefault(number[name], {}).update(fields)
    for key, tensor in moments.items():
        field, _, name = key.partition(":")
        shape = parameters[number[name]].shape
        if tensor.dim() and tensor.shape != shape:
            raise BadInput(
                f"the checkpoint {checkpoint.path} keeps {field} of {name} in shape {tuple(tensor.shape)}, the model has "
                f"{tuple(shape)}: it is another model"
            )
        state.setdefault(number[name], {})[field] = tensor
    groups, start = [], 0
    for saved, group in zip(plain["groups"], optimizer.param_groups, strict=True):
        settings = {k: tuple(v) if isinstance(v, list) else v for k, v in saved["settings"].items()}
        kept = {k: group[k] for k in IMPLEMENTATION if k in group}
        count = len(saved["names"])
        groups.append({**settings, **kept, "params": list(range(start, start + count))})
        start += count
    return {"state": state, "param_groups": groups}


def _alike(saved: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether saved settings have the names and the kinds of values that an optimizer's own have."""

    def kind(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple(map(kind, value))
        return float if isinstance(value, int | float | Tensor) and not isinstance(value, bool) else type(value)

    return saved.keys() == own.keys() and all(kind(saved[name]) == kind(own[name]) for name in own)


def _compare(path: Path, saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    if odd := sorted(saved.keys() ^ own.keys()):
        raise BadInput(
            f"the checkpoint {path} and the model differ in {len(odd):,} tensors, the first is {odd[0]}, which only the "
            f"{'checkpoint' if odd[0] in saved else 'model'} has: it is another model"
        )
    for name, here in own.items():
        there = saved[name]
        if there.shape != here.shape or there.dtype != here.dtype:
            raise BadInput(
                f"the checkpoint {path} has {name} as {there.dtype} {tuple(there.shape)}, the model as {here.dtype} "
                f"{tuple(here.shape)}: it is another model"
            )


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    for name, tensor in plain.items():
        if tensor.untyped_storage().nbytes() != tensor.nbytes:  # a window on something larger
            plain[name] = tensor.clone()
    save_file(plain, path)  # without metadata, whose order in the file is not fixed
    path.chmod(0o600)
    sync_folder(path)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        raise BadInput(f"{path} cannot be read, though it was whole a moment ago; resume again") from None


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(body).encode()).hexdigest()


def _all(folder: Path) -> Iterator[tuple[tuple[int, bool], Path]]:
    """Each checkpoint folder under its place in line."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := NAME.fullmatch(path.name):
            yield (int(match[1]), match[2] is None), path


def _prune(folder: Path, slots: int, keep: int) -> None:
    """Remove old checkpoints, and newer ones: the run that goes on from here has given them up."""
    older = sorted((place, path) for place, path in _all(folder) if place[0] <= slots)
    newer = [path for place, path in _all(folder) if place[0] > slots]
    for path in [*newer, *(path for _, path in older[:-keep])]:
        shutil.rmtree(path, ignore_errors=True)
