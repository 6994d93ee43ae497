"""The audit of the engine runs the plan it is given, on gradients of the worst kind, and says what that shows."""

import json

import pytest
import torch

from confide.attacks.gradients import engine_audit
from confide.dp import Plan
from confide.errors import BadInput, Refused


def test_the_sound_engine_agrees_with_its_plan_and_says_what_was_audited():
    plan = Plan(records=50_000, sampling_rate=0.05, steps=40, noise_multiplier=2.0, clip_norm=0.1)
    done = []
    found = engine_audit(plan, 1e-5, canaries=400, most_steps=25, tick=done.append)
    assert sum(done) == found["steps"] == 25
    assert found["certified"] == Plan(400, 0.05, 25, 2.0).epsilon(1e-5) < found["epsilon_of_plan"] == plan.epsilon(1e-5)
    assert "first 25 of 40 steps" in found["says"]
    assert "not the weights themselves" in found["says"]
    assert not found["contradicts"]
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("clipping", ["flat", "automatic", "per-layer"])
@pytest.mark.parametrize("clip_norm", [1e-3, 1.0, 1e4])
def test_little_noise_is_seen_through_at_every_clipping_norm(clip_norm, clipping):
    plan = Plan(records=200, sampling_rate=1.0, steps=1, noise_multiplier=0.2, clip_norm=clip_norm)
    found = engine_audit(plan, 1e-5, canaries=200, clipping=clipping, guesses=80)
    assert found["right"] == found["guesses"] == 80


def test_the_bound_comes_near_the_truth_where_the_audit_is_large():
    """One step without sampling is the Gaussian mechanism: 6,000 coins show about half of its ε."""
    plan = Plan(records=2000, sampling_rate=1.0, steps=1, noise_multiplier=1.5)
    found = engine_audit(plan, 1e-5, canaries=2000, runs=3)
    assert found["runs"] == 3
    assert 1.2 < found["lower_bound"] < found["certified"]


def test_batches_of_fixed_size_keep_their_rate():
    plan = Plan(records=300, sampling_rate=7 / 300, steps=3, noise_multiplier=2.0, sampler="fixed-size")
    found = engine_audit(plan, 1e-5, canaries=1000)
    assert found["canaries"] == 900
    assert found["sampler"] == "fixed-size"
    awkward = Plan(records=1_000_003, sampling_rate=64 / 1_000_003, steps=3, noise_multiplier=2.0, sampler="fixed-size")
    with pytest.raises(Refused, match="canaries or a multiple"):
        engine_audit(awkward, 1e-5)


def test_the_engines_audit_leaves_no_trace():
    before = torch.random.get_rng_state()
    with torch.no_grad():
        engine_audit(Plan(100, 0.1, 2, 1.0), 1e-5, canaries=20)
        assert not torch.is_grad_enabled()
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("choice", [{"canaries": 9}, {"canaries": 10**6}, {"runs": 0}, {"most_steps": 0}])
def test_an_impossible_audit_of_the_engine_is_refused(choice):
    with pytest.raises(BadInput):
        engine_audit(Plan(100, 0.1, 2, 1.0), 1e-5, **choice)
    with pytest.raises(BadInput, match=r"needs a confide\.dp\.Plan"):
        engine_audit({"records": 3}, 1e-5)
