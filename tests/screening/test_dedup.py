"""Later copies, exactly and by a Bloom filter, and near-duplicates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.errors import BadInput
from confide.screening.dedup import Bloom, Shuffle, bloom_copies, verified_copies
from confide.screening.near import alike, signature

digests = st.lists(st.integers(0, 6).map(lambda n: bytes([n]) * 16), max_size=20)


def expected(units, copies=1):
    """The oracle: count what came before."""
    return [slot for slot, unit in enumerate(units) if units[:slot].count(unit) >= copies]


@given(digests, st.binary(min_size=1, max_size=8))
def test_a_verified_filter_of_64_bits_finds_what_exact_dedup_finds(units, key):
    """guarantees §2."""
    bloom = Bloom(len(units) or 1, 1e-9, key, bits=64)
    assert list(verified_copies(enumerate(units), enumerate(units), bloom)) == expected(units)


@given(digests)
def test_a_filter_of_proper_size_agrees_too(units):
    assert list(bloom_copies(enumerate(units), Bloom(len(units) or 1, 1e-9, b"key"))) == expected(units)


def test_a_filter_that_is_too_small_has_false_positives_and_says_what_they_cost():
    units = [n.to_bytes(16, "big") for n in range(200)]
    small = Bloom(200, 1e-9, b"key", bits=64)
    assert list(bloom_copies(enumerate(units), small))
    assert small.delta == 1.0


@pytest.mark.parametrize(("entries", "delta"), [(1000, 1e-9), (10**6, 1e-9), (10, 1e-3)])
def test_the_filter_costs_no_more_than_it_was_told(entries, delta):
    bloom = Bloom(entries, delta, b"key")
    assert bloom.delta <= delta
    assert bloom.delta == (entries + 1) * (bloom.hashes * entries / bloom.bits) ** bloom.hashes


def test_the_bound_on_false_positives_holds():
    """A filter small enough to see them: the share of false positives stays below the bound for one unit."""
    entries, bits = 100, 2048
    false = trials = 0
    for key in range(40):
        bloom = Bloom(entries, 1e-9, bytes([key]), bits=bits)
        bloom.hashes = 4
        for n in range(entries):
            bloom.add(n.to_bytes(16, "big"))
        before = bloom._set.copy()
        for n in range(1000, 1200):
            bloom._set[:] = before
            false += bloom.add(n.to_bytes(16, "big"))
            trials += 1
    bound = (4 * entries / bits) ** 4
    assert 0 < false / trials <= bound


def test_a_filter_for_too_many_records_is_refused():
    with pytest.raises(BadInput, match="would not fit into memory"):
        Bloom(10**10, 1e-9, b"key")


@given(units=digests, copies=st.integers(1, 3))
def test_exact_dedup_counts_copies_in_the_order_of_the_corpus(tmp_path_factory, units, copies):
    with Shuffle(tmp_path_factory.mktemp("shuffle") / "work") as shuffle:
        flat = np.frombuffer(b"".join(units), np.uint8).reshape(-1, 16)
        for start in reversed(range(0, len(units), 4)):  # chunks may come in any order
            part = slice(start, start + 4)
            shuffle.add(1, flat[part], np.arange(len(units))[part])
        assert list(shuffle.later_copies(1, copies)) == expected(units, copies)
        assert list(shuffle.ordered(1)) == list(enumerate(units))


def test_near_duplicates_share_most_of_their_words():
    text = "one two three four five six seven eight nine ten " * 3
    close, far = signature(text + "eleven"), signature("something else altogether, with other words in it")
    assert alike(signature(text), close)
    assert not alike(signature(text), far)
