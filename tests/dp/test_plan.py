"""A plan hands out steps that are paid for, at most as many as planned, each to be released once and by itself."""

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest
from torch.utils.data import DataLoader, RandomSampler

from confide.accounting import FixedSizeGaussian, LedgerWriter, PoissonGaussian, read_ledger
from confide.dp import plan as plan_module
from confide.dp.plan import Plan, Step
from confide.errors import BadInput, Refused

PLAN = Plan(records=100, sampling_rate=0.1, steps=10, noise_multiplier=1.5, clip_norm=0.5)


def release(step):
    step.spend(step.plan, len(step.indices))


def take(steps, count=None):
    """Release `count` steps, or all."""
    taken = 0
    for step in steps:
        release(step)
        taken += 1
        if taken == count:
            break
    return taken


def spent(path, phase="train"):
    return [event.count for name, event in read_ledger(path).spent if name == phase]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def ledger(path):
    with LedgerWriter.create(path, {}, [("train", PLAN.event)]) as writer:
        yield writer


def test_a_plan_derives_its_constants_from_its_fields():
    assert PLAN.expected_batch == 10.0
    assert PLAN.noise_std == 0.75
    assert PLAN.event == PoissonGaussian(0.1, 1.5, 10)
    assert dataclasses.replace(PLAN, sampler="fixed-size").event == FixedSizeGaussian(0.1, 1.5, 10)


def test_the_epsilon_of_a_plan_is_the_golden_one():
    plan = Plan(10_000, 0.03125, 320, 1.0)
    assert plan.epsilon(8e-5) == pytest.approx(4.78, abs=0.01)
    assert plan.epsilon(8e-5, k=2) == pytest.approx(11.0, abs=0.1)
    assert plan.epsilon(8e-5, adjacency="zero-out") < plan.epsilon(8e-5)


def test_a_plan_for_an_epsilon_keeps_it():
    plan = Plan.for_epsilon(records=1024, batch=32, steps=320, epsilon=2.0, delta=8e-5, clip_norm=0.1)
    assert plan.epsilon(8e-5) <= 2.0
    assert plan.noise_multiplier == pytest.approx(1.97, abs=0.01)
    assert (plan.expected_batch, plan.steps, plan.clip_norm, plan.sampler) == (32, 320, 0.1, "poisson")


@pytest.mark.parametrize(
    "change",
    [
        {"records": 0},
        {"records": 2.5},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.1},
        {"sampling_rate": math.nan},
        {"steps": 0},
        {"steps": True},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.inf},
        {"clip_norm": 0.0},
        {"clip_norm": -1.0},
        {"clip_norm": math.nan},
        {"clip_norm": 9e-10},
        {"clip_norm": 1.1e6},
        {"records": 10**9 + 1},
        {"sampler": "shuffled"},
        {"sampler": "fixed-size", "sampling_rate": 0.123},
        {"sampler": "fixed-size", "sampling_rate": 1e-4},
    ],
)
def test_a_plan_that_cannot_be_accounted_for_is_refused(change):
    with pytest.raises(BadInput):
        dataclasses.replace(PLAN, **change)


@pytest.mark.parametrize("batch", [0, 101, math.nan])
def test_a_batch_outside_the_corpus_is_refused(batch):
    with pytest.raises(BadInput, match="batch"):
        Plan.for_epsilon(records=100, batch=batch, steps=1, epsilon=1.0, delta=1e-5)


def test_a_rate_that_is_a_whole_number_up_to_rounding_has_fixed_size():
    plan = Plan(records=30, sampling_rate=0.1, steps=3, noise_multiplier=1.0, sampler="fixed-size")
    for step in plan.run():
        assert len(step.indices) == 3
        release(step)
    with pytest.raises(Refused, match="cannot be drawn in shares"):
        plan.run(part=(0, 2))


def test_a_run_hands_out_the_planned_steps_with_fresh_batches():
    batches = []
    for step in PLAN.run():
        assert step.plan is PLAN
        assert step.part == (0, 1)
        batches.append(tuple(step.indices))
        release(step)
    assert len(batches) == 10
    assert len(set(batches)) == 10
    assert {tuple(step.indices) for step in PLAN.run() if release(step) is None}.isdisjoint(batches)


def test_a_step_is_in_the_ledger_before_it_is_handed_out(ledger, path):
    for number, step in enumerate(PLAN.run(ledger), start=1):
        assert sum(spent(path)) == number
        release(step)
    assert spent(path) == [1] * 10
    assert read_ledger(path).charged() == (PLAN.event,)


def test_nothing_is_spent_before_the_first_step_is_asked_for(ledger, path):
    PLAN.run(ledger)
    assert spent(path) == []


def test_steps_are_reserved_in_blocks_of_which_the_last_is_shorter(ledger, path):
    steps = PLAN.run(ledger, reserve=4)
    take(steps, 1)
    assert spent(path) == [4]
    assert take(steps) == 9
    assert spent(path) == [4, 4, 2]


@pytest.mark.parametrize("reserve", [1, 3, 100])
@pytest.mark.parametrize("stops", [[1], [4, 1], [9], [10], [2, 2, 2]])
def test_resuming_never_exceeds_the_plan(tmp_path, reserve, stops):
    path = tmp_path / "ledger"
    LedgerWriter.create(path, {}, [("train", PLAN.event)]).close()
    taken = 0
    for stop in [*stops, None, None]:
        with LedgerWriter.resume(path) as ledger:
            taken += take(PLAN.run(ledger, reserve=reserve), stop)
    assert sum(spent(path)) == 10
    assert taken <= 10
    if reserve == 1:
        assert taken == 10


def test_a_step_that_was_paid_for_but_lost_counts(ledger, path):
    next(PLAN.run(ledger))
    assert take(PLAN.run(ledger)) == 9
    assert sum(spent(path)) == 10


def test_two_runs_cannot_spend_the_same_steps(ledger, path):
    first = PLAN.run(ledger)
    take(first, 3)
    take(PLAN.run(ledger))
    with pytest.raises(Refused, match="another run took steps"):
        take(first)
    assert sum(spent(path)) == 10


def test_other_phases_may_write_in_between(path):
    other = dataclasses.replace(PLAN, noise_multiplier=3.0)
    with LedgerWriter.create(path, {}, [("redacted", other.event), ("train", PLAN.event)]) as ledger:
        first, second = other.run(ledger, phase="redacted"), PLAN.run(ledger)
        for _ in range(10):
            release(next(first))
            release(next(second))
        assert (list(first), list(second)) == ([], [])
    assert spent(path) == spent(path, "redacted") == [1] * 10


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(PLAN, noise_multiplier=1.0),
        dataclasses.replace(PLAN, steps=11),
        dataclasses.replace(PLAN, sampling_rate=0.2),
        dataclasses.replace(PLAN, sampler="fixed-size"),
    ],
)
def test_a_ledger_with_another_plan_is_refused(ledger, path, other):
    with pytest.raises(Refused, match="plans something else"):
        other.run(ledger)
    with pytest.raises(Refused, match="plans nothing"):
        PLAN.run(ledger, phase="second")
    assert spent(path) == []


@pytest.mark.parametrize("event", [PoissonGaussian(0.1, 1.5, 11), PoissonGaussian(0.2, 1.5)])
def test_a_ledger_beyond_its_plan_takes_no_more_steps(ledger, event):
    ledger.append(event)
    with pytest.raises(Refused, match="beyond its plan"):
        PLAN.run(ledger)


def test_a_step_is_released_once():
    step = next(PLAN.run())
    release(step)
    with pytest.raises(Refused, match="already released"):
        release(step)


def test_a_step_that_is_not_released_ends_the_run():
    steps = PLAN.run()
    next(steps)
    with pytest.raises(Refused, match="drawn but never released: an empty batch too"):
        next(steps)


def test_the_last_step_must_be_released_too():
    plan = dataclasses.replace(PLAN, steps=1)
    with pytest.raises(Refused, match="never released"):
        list(plan.run())


def test_an_empty_step_cannot_be_left_out():
    steps = Plan(records=1, sampling_rate=1e-9, steps=3, noise_multiplier=1.0).run()
    assert len(next(steps).indices) == 0
    with pytest.raises(Refused, match="an empty batch too must be noised"):
        next(steps)


def test_an_empty_draw_has_no_microbatches_and_is_released_like_any_other():
    plan = Plan(records=1, sampling_rate=1e-9, steps=3, noise_multiplier=1.0)
    for step in plan.run():
        assert list(step.microbatches(4)) == []
        step.spend(plan, 0)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_microbatches_hold_every_index_once(size):
    step = next(dataclasses.replace(PLAN, sampling_rate=0.5).run())
    parts = list(step.microbatches(size))
    assert all(0 < len(part) <= size for part in parts)
    assert np.concatenate([np.empty(0), *parts]).tolist() == step.indices.tolist()
    with pytest.raises(BadInput, match="microbatch size"):
        step.microbatches(0)


@pytest.mark.parametrize("off", [-1, 1, 32])
def test_examples_that_are_not_those_drawn_are_refused_without_saying_how_many(off):
    step = next(Plan(97, 1.0, 1, 1.0).run())
    with pytest.raises(Refused, match="not the records drawn") as refusal:
        step.spend(step.plan, 97 + off)
    assert "97" not in str(refusal.value)
    assert not step.released
    release(step)


def test_a_step_of_another_plan_is_refused():
    step = next(PLAN.run())
    with pytest.raises(Refused, match="belongs to another plan"):
        step.spend(dataclasses.replace(PLAN, noise_multiplier=1.6), len(step.indices))
    assert not step.released


def test_a_step_tells_nothing_and_is_not_stored():
    step = next(Plan(97, 1.0, 1, 1.0).run())
    assert repr(step) == str(step) == "Step(part=(0, 1), not yet released)"
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(Refused, match="not copied, pickled or saved"):
            copied(step)
    with pytest.raises(ValueError, match="read-only"):
        step.indices[0] = 1


@pytest.mark.parametrize("batches", [DataLoader([1, 2]), RandomSampler([1, 2]), [1, 2], np.arange(3), None])
def test_batches_that_the_plan_did_not_draw_are_refused(batches):
    with pytest.raises(Refused, match="shuffled or other batches carry none of the amplification"):
        PLAN.refuse_foreign(batches)


def test_the_plans_own_steps_are_not_foreign():
    step = next(PLAN.run())
    PLAN.refuse_foreign(step)
    with pytest.raises(Refused, match="another plan"):
        dataclasses.replace(PLAN, steps=9).refuse_foreign(step)


def test_ranks_draw_from_disjoint_shares():
    plan = dataclasses.replace(PLAN, sampling_rate=1.0)
    shares = [next(plan.run(part=(rank, 3))).indices for rank in range(3)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(100))


def test_only_rank_0_has_the_ledger(ledger):
    with pytest.raises(BadInput, match="only rank 0 writes it"):
        PLAN.run(ledger, part=(1, 2))


@pytest.fixture
def cluster(monkeypatch):
    """A function that makes this process a rank of a pretended cluster; what rank 0 broadcasts stays for the others."""
    said = []

    def broadcast(objects, src):
        if plan_module.dist.get_rank() == src:
            said[:] = objects
        objects[:] = said

    def become(rank, world):
        monkeypatch.setattr(plan_module.dist, "is_initialized", lambda: True)
        monkeypatch.setattr(plan_module.dist, "get_rank", lambda: rank)
        monkeypatch.setattr(plan_module.dist, "get_world_size", lambda: world)
        monkeypatch.setattr(plan_module.dist, "broadcast_object_list", broadcast)

    return become


def test_every_rank_takes_as_many_steps_as_rank_0_has_left(ledger, cluster):
    take(PLAN.run(ledger), 4)
    cluster(0, 2)
    steps = PLAN.run(ledger)
    cluster(1, 2)
    other = PLAN.run()
    assert next(other).part == (1, 2)
    assert take(PLAN.run()) == 6
    cluster(0, 2)
    assert take(steps) == 6


def test_a_refusal_of_rank_0_reaches_every_rank(ledger, cluster):
    other = dataclasses.replace(PLAN, steps=11)
    for rank in range(2):
        cluster(rank, 2)
        with pytest.raises(Refused, match="plans something else"):
            other.run(ledger if rank == 0 else None)


def test_two_processes_with_the_same_share_are_refused(cluster):
    cluster(1, 2)
    with pytest.raises(Refused, match="shares must not overlap"):
        PLAN.run(part=(0, 1))


@pytest.mark.parametrize("reserve", [0, -1, 1.5])
def test_a_block_of_no_steps_is_refused(reserve):
    with pytest.raises(BadInput, match="reserve"):
        PLAN.run(reserve=reserve)


def test_a_step_is_made_by_a_plan_and_carries_no_batch_size_but_the_public_one():
    step = next(PLAN.run())
    assert isinstance(step, Step)
    assert not hasattr(step, "__len__")
    assert not hasattr(step, "__dict__")


@pytest.mark.parametrize(
    "change", [{"clip_norm": 1e-9}, {"clip_norm": 1e6}, {"records": 10**9}, {"sampling_rate": 1.0}]
)
def test_a_plan_at_its_borders_is_taken(change):
    made = dataclasses.replace(PLAN, **change)
    assert made.expected_batch == made.sampling_rate * made.records


def test_a_rate_for_batches_of_fixed_size_is_suggested():
    for rate, near in ((0.123, "12/100"), (1e-4, "1/100")):
        with pytest.raises(BadInput, match=f"a whole number of records: .*; use the rate {near}"):
            dataclasses.replace(PLAN, sampler="fixed-size", sampling_rate=rate)


def test_a_plan_for_an_epsilon_counts_what_it_was_told_to_count():
    asked = {"records": 1000, "batch": 10, "steps": 20, "epsilon": 2.0, "delta": 1e-5}
    base = Plan.for_epsilon(**asked)
    for more in ({"k": 2}, {"adjacency": "zero-out"}):
        made = Plan.for_epsilon(**asked, **more)
        assert made.noise_multiplier != base.noise_multiplier
        assert 1.99 < made.epsilon(1e-5, **more) <= 2.0
    assert Plan.for_epsilon(**{**asked, "batch": 1000}).sampling_rate == 1.0


def test_microbatches_are_the_callers_own():
    step = next(dataclasses.replace(PLAN, sampling_rate=1.0).run())
    for rows in step.microbatches(30):
        rows += 1
    assert step.indices.tolist() == list(range(100))


def test_a_run_over_the_last_step_of_a_ledger_has_no_step(ledger):
    take(PLAN.run(ledger))
    assert list(PLAN.run(ledger)) == []
    assert list(PLAN.run(ledger, reserve=5)) == []


@pytest.mark.parametrize("name", ["clipping_norm", "private_records"])
def test_a_ledger_that_states_the_plans_own_facts_is_taken(path, name):
    facts = {"clipping_norm": PLAN.clip_norm, "private_records": PLAN.records}
    with LedgerWriter.create(path, {name: facts[name]}, [("train", PLAN.event)]) as ledger:
        assert take(PLAN.run(ledger)) == 10
