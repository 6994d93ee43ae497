"""A minute of hostile cases for every reader and parser; `make fuzz` runs a hundred thousand."""

import importlib.util
import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

spec = importlib.util.spec_from_file_location("confide_fuzz", Path(__file__).with_name("fuzz.py"))
fuzz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fuzz)

CASES = {
    "certificate": 25,
    "command_line": 15,
    "checkpoint": 60,
    "painting": 15,
    "run_folder": 12,
    "policy_file": 60,
    "policy_spec": 60,
    "saved_dataset": 60,
}  # else 200
GROWTH = 1 << 20  # kilobytes of memory that all cases together may add


@pytest.mark.parametrize("target", fuzz.TARGETS, ids=lambda target: target.__name__)
def test_a_result_or_a_refusal_in_words_and_nothing_else(target, tmp_path):
    @settings(
        max_examples=CASES.get(target.__name__, 200),
        deadline=None,
        database=None,
        phases=[Phase.generate],  # a failure is told by its coins; making it smaller would take minutes
        suppress_health_check=list(HealthCheck),
    )
    @given(coins=st.randoms(use_true_random=False))
    def cases(coins):
        fuzz.run(target, coins, tmp_path)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cases()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH


def test_a_crash_a_leak_and_a_hang_are_seen(tmp_path, monkeypatch):
    """The fuzzer itself: three planted faults."""
    with pytest.raises(KeyError):
        fuzz.refused(lambda: {}[0])
    with pytest.raises(AssertionError, match="text of the corpus"):
        fuzz.refused(lambda: (_ for _ in ()).throw(fuzz.BadInput(f"bad row: {fuzz.SECRET}")))
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)

    def hangs(coins, home):
        while True:
            pass

    with pytest.raises(fuzz.Hang):
        fuzz.run(hangs, fuzz.Random(0), tmp_path)


def test_a_forged_certificate_that_held_would_be_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz.accounting, "verify", lambda path: path)

    def cases():
        for number in range(50):
            fuzz.certificate(fuzz.Random(number), tmp_path)

    with pytest.raises((AssertionError, ValueError)):  # a changed one, or one that is no JSON at all
        cases()
