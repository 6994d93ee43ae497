"""Later copies, exactly and by a Bloom filter, and near-duplicates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.errors import BadInput
from confide.screening.dedup import Bloom, Shuffle, bloom_copies, verified_copies
from confide.screening.near import BANDS, BLOCK, HASHES, alike, bands, signature

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


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, 2.0])
def test_a_filter_costs_something_and_not_everything(delta):
    with pytest.raises(BadInput, match="delta must lie between 0 and 1"):
        Bloom(10, delta, b"key")


@pytest.mark.parametrize(
    ("entries", "delta", "bits", "hashes"),
    [(1, 0.5, 64, 24), (0, 0.5, 64, 24), (1000, 1e-9, 131072, 48), (10, 1e-300, 32768, 256)],
)
def test_a_filter_has_the_size_that_its_cost_needs(entries, delta, bits, hashes):
    bloom = Bloom(entries, delta, b"key")
    assert (bloom.bits, bloom.hashes) == (bits, hashes)


def test_every_bit_of_a_filter_can_be_set():
    bloom = Bloom(10, 0.5, b"key", bits=70)
    for n in range(400):
        bloom.add(n.to_bytes(16, "big"))
    assert np.unpackbits(bloom._set).sum() == 70


def test_parts_are_compared_apart_and_nothing_is_nothing(tmp_path):
    digest, where = np.zeros((2, 16), np.uint8), np.array([3, 8])
    with Shuffle(tmp_path / "work") as shuffle:
        assert shuffle.add(0, digest[:0], where[:0]) == 0
        assert shuffle.add(0, digest, where) == 2
        assert shuffle.add(1, digest[:1], np.array([5])) == 1
        assert [list(shuffle.later_copies(part)) for part in (0, 1, 2)] == [[8], [], []]
        assert list(shuffle.near_copies()) == []


def test_near_copies_are_those_of_an_earlier_record_each_named_once(tmp_path):
    text = " ".join(f"w{n}" for n in range(60))
    texts = [
        text,
        "quite another text about other things",
        text + " end",
        text + " end",
        "Quite Another text about other things",
    ]
    with Shuffle(tmp_path / "work") as shuffle:
        shuffle.add_signatures(np.array([signature(one) for one in texts]), np.array([2, 4, 6, 8, 10]))
        assert list(shuffle.near_copies()) == [6, 8, 10]


def test_records_are_alike_from_four_fifths_of_their_hashes():
    one = np.arange(HASHES, dtype=np.uint32)
    for equal, found in ((HASHES, True), (52, True), (51, False), (0, False)):
        other = one.copy()
        other[equal:] += 100
        assert alike(one, other) == found
    assert alike(np.stack([one, one]), np.stack([one, one + 1])).tolist() == [True, False]


def test_a_signature_is_of_three_words_at_a_time_wherever_they_stand():
    assert signature("a b").tolist() != signature("a c").tolist()
    assert signature("a b c").tolist() == signature("A  b\nC").tolist()
    assert signature("a b c a b c a b c").tolist() == signature("a b c a b c").tolist()
    assert signature("").shape == (HASHES,)
    words = [f"w{n}" for n in range(BLOCK + 500)]
    whole, start, end = (signature(" ".join(part)) for part in (words, words[: BLOCK + 2], words[BLOCK:]))
    assert np.all((whole == start) | (whole == end))
    assert np.any(whole != start)
    assert np.any(whole != end)


def test_one_band_is_a_key_of_its_own_hashes():
    one = np.arange(HASHES, dtype=np.uint32)[None]
    for changed in range(HASHES):
        other = one.copy()
        other[0, changed] += 1
        differing = np.flatnonzero((bands(one) != bands(other))[0])
        assert differing.tolist() == [changed // (HASHES // BANDS)]
    assert bands(one).shape == (1, BANDS)
