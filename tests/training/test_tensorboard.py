"""TensorBoard is fed with telemetry and nothing else: the same names and values, and no time but the slot's."""

import json

import pytest

from confide.training import make_plan, train_plan
from confide.training.telemetry import ALLOWED

accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def scalars(folder):
    """Every value that TensorBoard shows, by name: (slot, value, time)."""
    events = accumulators.EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()
    assert not any(tags[kind] for kind in tags if kind != "scalars")
    return {name: [(one.step, one.value, one.wall_time) for one in events.Scalars(name)] for name in tags["scalars"]}


def test_tensorboard_shows_what_telemetry_holds_and_nothing_else(screened, small, tmp_path):
    run = train_plan(make_plan(screened, **small(method="crt")), tmp_path / "run", board=True)
    lines = [json.loads(line) for line in (run.folder / "telemetry.jsonl").read_text().splitlines()]
    shown = scalars(run.folder / "tensorboard")
    assert shown
    assert shown.keys() <= ALLOWED
    for name, values in shown.items():
        told = [(one["slot"], one[name]) for one in lines if isinstance(one.get(name), float)]
        assert [(slot, pytest.approx(value, rel=1e-6)) for slot, value, _ in values] == told
        assert [time for *_, time in values] == [slot for slot, _ in told]
