"""Ledgers and certificates for the tests."""

import pytest

from confide.accounting import LedgerWriter, PoissonGaussian, Setting, read_ledger

STEPS = PoissonGaussian(0.03125, 2.0, 320)


@pytest.fixture
def setting():
    """A setting in which a certificate holds; keyword arguments change it."""

    def make(**changes):
        base = {
            "method": "crt",
            "unit": "turn",
            "policy": "patterns",
            "conservative": "everything",
            "private_records": 32_000,
            "clipping_norm": 1.0,
            "mask_consistent": True,
        }
        return Setting(**(base | changes))

    return make


@pytest.fixture
def ledger(tmp_path, setting):
    """A ledger on disk, read back; events are (phase, event) pairs."""

    def make(*entries, planned=None, name="ledger.jsonl", **changes):
        entries = entries or (("train", STEPS),)
        path = tmp_path / name
        plan = entries if planned is None else planned
        with LedgerWriter.create(path, setting(**changes).to_plain(), plan) as writer:
            for phase, event in entries:
                writer.append(event, phase)
        return read_ledger(path)

    return make
