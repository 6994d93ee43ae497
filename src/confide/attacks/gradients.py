"""The white-box audit: a plan in; a lower bound on ε of the engine that carries it out, beside the plan's own ε, out.

The plan's sampler, the engine's per-example clipping and sum, and its noise are run as in training, at the plan's rate,
noise, clipping norm and steps; only the model is another one, in which each record is a canary with a gradient of its own.
What is audited is the code that made a run's weights, at their parameters: not the weights, nor the records' screening.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..accounting.events import check_count
from ..accounting.guarantees import down, finite
from ..dp import Plan, PrivateGradients
from ..dp.losses import Inputs
from ..dp.plan import own_part
from ..errors import BadInput, Refused
from .audit import FEWEST, enough_guesses, pooled, scope, verdict
from .statistics import Floats

LARGE = 1000.0  # a canary's gradient before clipping, in clipping norms: an engine that does not clip gives itself away
AT_ONCE = 2**22  # numbers of a microbatch
MOST_CANARIES = 20_000
MOST_STEPS = 2000


def engine_audit(
    plan: Plan,
    delta: float,
    *,
    canaries: int = 1000,
    runs: int = 1,
    guesses: int | None = None,
    beta: float = 0.05,
    most_steps: int = MOST_STEPS,
    clipping: str = "flat",
    device: str | torch.device | None = None,
    tick: Callable[[int], object] = lambda done: None,
) -> dict[str, Any]:
    """A lower bound on ε from the engine's own released gradients, and whether it contradicts the plan's ε at δ.

    Canary i's gradient is +M·e_i or −M·e_i, as its coin fell, with M far above the clipping norm C. After clipping the two are
    2C apart, which is the most that substitution can do, and no other record touches coordinate i. The guesser sees every
    released gradient and knows the plan: the score is the log-likelihood ratio of the coin, summed over steps. `tick` is
    called with the steps done.

    *Formal guarantees.* If sampler, clipping and noise do what the plan says, the bound exceeds `certified` with
    probability at most β: flipping a coin replaces one record of the audited plan, whose ε is that of the steps taken (the
    first `most_steps`; `steps_of_plan` has all). ε depends on rate, noise and steps, not on the number of records, so that the
    canaries stand in for the records; q·n is a public divisor. The number of guesses comes from public numbers alone. The
    reverse does not hold: a bound below `certified` proves nothing about mistakes that these canaries do not meet, as in
    the gradients of other layers, in randomness that repeats between steps, or over several processes.
    """
    audited = _plan(plan, canaries, most_steps)
    check_count("runs", runs, high=1000)
    if own_part() != (0, 1):
        raise Refused("the audit of the engine runs in one process: each would flip coins of its own")
    certified = audited.epsilon(delta)
    total = runs * audited.records
    if guesses is None:
        guesses = enough_guesses(total, delta, certified, beta)
    scored = [_one(audited, clipping, device, tick) for _ in range(runs)]
    found = pooled(scored, delta, guesses=guesses, beta=beta)
    bound = found["lower_bound"]
    parts = "" if audited.steps == plan.steps else f", for the first {audited.steps:,} of {plan.steps:,} steps"
    shown = (
        f"With confidence {100 * (1 - beta):.10g}%, the engine's gradients show an epsilon of at least {down(bound)}"
    )
    judged = (
        verdict(bound, certified, found["reach"], scope(1, "substitution", delta) + "the plan promises")
        if math.isfinite(certified)
        else "The plan promises nothing finite."
    )
    return {
        **found,
        "certified": finite(certified),
        "records": 1,
        "adjacency": "substitution",
        "contradicts": bool(bound > certified),
        "steps": audited.steps,
        "steps_of_plan": plan.steps,
        "epsilon_of_plan": finite(certified if audited.steps == plan.steps else plan.epsilon(delta)),
        "sampling_rate": plan.sampling_rate,
        "noise_multiplier": plan.noise_multiplier,
        "clip_norm": plan.clip_norm,
        "sampler": plan.sampler,
        "says": (
            f"{shown}{parts}. {judged} Audited is the code that made the weights, at this run's rate, noise, clipping norm and "
            "steps, with gradients of the worst kind in place of records; not the weights themselves."
        ),
    }


def _plan(plan: Plan, canaries: int, most_steps: int) -> Plan:
    """The plan with canaries for its records, and its first steps if it has more."""
    if not isinstance(plan, Plan):
        raise BadInput(f"engine_audit(plan, delta) needs a confide.dp.Plan, got {type(plan).__name__}")
    check_count("canaries", canaries, low=FEWEST, high=MOST_CANARIES)
    check_count("most_steps", most_steps)
    if plan.sampler == "fixed-size":  # batches are a whole number of records at the same rate
        batch = round(plan.expected_batch)
        unit = plan.records // math.gcd(plan.records, batch)
        canaries = max(unit, canaries // unit * unit)
        if canaries > MOST_CANARIES:
            raise Refused(
                f"batches of {batch:,} of {plan.records:,} records have their rate only with {unit:,} canaries or a multiple, "
                f"more than the {MOST_CANARIES:,} that an audit can hold; use a plan with rounder numbers, or Poisson batches"
            )
        canaries = unit * -(-FEWEST // unit) if canaries < FEWEST else canaries
    return replace(plan, records=canaries, steps=min(plan.steps, most_steps))


def _one(
    plan: Plan, clipping: str, device: str | torch.device | None, tick: Callable[[int], object]
) -> tuple[Floats, NDArray[np.bool_]]:
    """One run of the engine on fresh coins: what the guesser thinks of each canary, and how the coins fell."""
    present = np.random.default_rng().random(plan.records) < 0.5
    place = torch.device("cpu" if device is None else device)
    # Sizes differ so that the engine can prove the examples of a batch to be independent; after clipping they are equal.
    sizes = LARGE * max(1.0, plan.clip_norm) * (1 + torch.arange(plan.records, dtype=torch.float64) / plan.records)
    gradients = (torch.from_numpy(np.where(present, 1.0, -1.0)) * sizes).float().to(place)
    model: nn.Module = nn.Linear(plan.records, 1, bias=False, device="meta")  # draws nothing from torch's generator
    weight = nn.Parameter(torch.zeros(1, plan.records, device=place))
    model.register_parameter("weight", weight)
    private = PrivateGradients(model.train(), plan, clipping=clipping)
    scores = np.zeros(plan.records)
    most = max(1, AT_ONCE // plan.records)
    try:
        with torch.enable_grad():
            for step in plan.run():
                for rows in step.microbatches(most):
                    private.accumulate(_batch(torch.from_numpy(rows).to(place), gradients), _loss)
                private.release(step)
                assert weight.grad is not None
                scores += _evidence(weight.grad[0].double().cpu().numpy(), plan)
                tick(1)
    finally:
        private.detach()
    return scores, present


def _batch(rows: Tensor, gradients: Tensor) -> dict[str, Tensor]:
    x = torch.zeros(len(rows), len(gradients), device=rows.device)
    x[torch.arange(len(rows), device=rows.device), rows] = gradients[rows]
    return {"x": x}


def _loss(model: nn.Module, inputs: Inputs) -> Tensor:
    """Linear in the weights, so that the gradient of an example is its input, wherever the model stands."""
    losses: Tensor = model(inputs["x"])[:, 0]
    return losses


def _evidence(gradient: Floats, plan: Plan) -> Floats:
    """The log-likelihood ratio, for each coordinate of a released gradient, of a canary at +C against one at −C."""
    seen = gradient * plan.expected_batch / plan.clip_norm
    precision, rate = plan.noise_multiplier**-2, plan.sampling_rate
    for_it, against_it = (seen - 0.5) * precision, (-seen - 0.5) * precision
    if rate == 1:
        ratio: Floats = for_it - against_it
        return ratio
    out, drawn = math.log1p(-rate), math.log(rate)
    mixed: Floats = np.logaddexp(out, drawn + for_it) - np.logaddexp(out, drawn + against_it)
    return mixed
