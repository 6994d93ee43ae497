"""What a run will cost: a plan in; time and memory out, from two steps of each kind on records of the corpus's lengths."""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..dp import Plan, PrivateGradients
from ..dp.memory import keep_memory
from .building import new_model, new_tokenizer
from .corpus import Source, TokenFile, examples
from .encoding import Encoder, Tokens
from .optim import make_optimizer
from .phases import Phase, Slot
from .planning import TrainingPlan
from .prepared import Prepared
from .selective import Selective
from .steps import PublicGradients, autocast, count_targets

SAMPLE = 1024  # records of which lengths are taken


def probe(plan: TrainingPlan) -> dict[str, Any]:
    """Seconds of a step of each kind, of the whole run, and the peak of memory.

    Tokens are random: nothing that is shown depends on what a record says, only on how long records are.
    """
    options = plan.options
    keep_memory()
    tokenizer, _, placeholders = new_tokenizer(plan)
    model, device = new_model(plan, tokenizer)
    prepared = Prepared(plan, Path(), model, tokenizer, placeholders, device)
    optimizer = make_optimizer((p for p in model.parameters() if p.requires_grad), options.optimizer)
    seconds, found = 0.0, []
    with tempfile.TemporaryDirectory() as folder:
        for phase in plan.phases:
            tokens = TokenFile.write(Path(folder) / phase.name, _alike(plan, phase, prepared.encoder(phase)))
            public, private = plan.public_steps(phase) * phase.epochs, plan.private_steps(phase)
            times = {
                "public_step": _public(prepared, tokens, optimizer) if public else 0.0,
                "private_step": _noised(prepared, tokens, optimizer, phase) if private else 0.0,
            }
            seconds += public * times["public_step"] + private * times["private_step"]
            found.append({"phase": phase.name, **times})
    return {"seconds": seconds, "steps": found, "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _alike(plan: TrainingPlan, phase: Phase, encoder: Encoder) -> list[Tokens]:
    """Records of random tokens, as long as the first ones of the phase's text; where S-DP cuts, with their private places."""
    source = next((one for one in (phase.private, phase.public) if one is not None and plan.records(one)), None)
    if source is None:
        return []  # nothing is flagged, or all is held out: the phase has no step
    coins = np.random.default_rng(0)
    shapes: list[NDArray[np.bool_]] = []
    # As many records of each part as the phase has: those of the private part are longer, and only they hold secrets.
    for part in filter(plan.sizes.get, source.parts):
        share = -(-SAMPLE * plan.sizes[part] // plan.records(source))
        found = [
            record.private
            for some in islice(examples(plan.screened, Source((part,), source.view), encoder, SAMPLE), 1)
            for record in encoder.encode(some)
        ]
        shapes += [found[n] for n in coins.integers(len(found), size=share)] if found else []
    high = len(encoder.tokenizer)
    label = 0 if encoder.task == "classify" else -1
    return [
        Tokens(coins.integers(high, size=len(shape), dtype=np.int32), np.arange(len(shape)) > 0, shape, label)
        for shape in (shapes[n] for n in coins.integers(len(shapes), size=SAMPLE))
    ]


def _public(prepared: Prepared, tokens: TokenFile, optimizer: torch.optim.Optimizer) -> float:
    options, model = prepared.plan.options, prepared.model.train()
    gradients = PublicGradients(model, options.task)
    size, stream = min(options.microbatch, options.batch_size), prepared.stream(tokens)

    def step() -> None:
        batch = stream.batch(np.random.default_rng().integers(len(tokens), size=size))
        with autocast(options.precision, prepared.device):
            gradients.backward(batch, max(1, count_targets(batch, options.task)))

    return -(-options.batch_size // size) * _seconds(step) + _seconds(optimizer.step)


def _noised(prepared: Prepared, tokens: TokenFile, optimizer: torch.optim.Optimizer, phase: Phase) -> float:
    plan = prepared.plan.private[phase.name]
    if phase.whole_segments:
        return _selective(prepared, tokens, optimizer, phase)
    return _private(prepared, tokens, optimizer, plan)


def _selective(prepared: Prepared, tokens: TokenFile, optimizer: torch.optim.Optimizer, phase: Phase) -> float:
    """A whole batch of the paper's variant, by the code that trains.

    One step of it is up to 2·segments + 1 updates, one after another, as many as the record of the batch with the most
    segments has. So neither one release nor a smaller batch tells what it costs.
    """
    count = prepared.plan.records(phase.private)
    stream = prepared.stream(tokens, np.resize(np.arange(len(tokens)), count))
    steps = Selective(prepared.plan, phase, prepared, stream, optimizer)
    try:
        return _seconds(lambda: steps.step(Slot(0, 0, "private", 0), lambda slot: 0.0))
    finally:
        steps.gradients.detach()


def _private(prepared: Prepared, tokens: TokenFile, optimizer: torch.optim.Optimizer, plan: Plan) -> float:
    options, model = prepared.plan.options, prepared.model.train()
    size = max(1, min(options.microbatch, round(plan.expected_batch), len(tokens)))
    own = Plan(size, 1.0, 4, plan.noise_multiplier, plan.clip_norm)
    gradients = PrivateGradients(
        model, own, task=options.task, reduction=options.reduction, clipping=options.clipping, checked=False
    )
    steps, stream = own.run(), prepared.stream(tokens)

    def release() -> None:
        step = next(steps)
        batch = stream.batch(np.random.default_rng().integers(len(tokens), size=size))
        with autocast(options.precision, prepared.device):
            gradients.accumulate(batch)
        gradients.release(step)
        optimizer.step()

    try:
        whole = _seconds(release)
    finally:
        gradients.detach()
    return whole * plan.expected_batch / size if size < plan.expected_batch else whole


def _seconds(step: Callable[[], object]) -> float:
    """The time of a step: the median of two, after one to warm up."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])
