"""Batches are what the accountant assumes. Limits have a false alarm below 1e-6."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from confide.dp import sampling
from confide.dp.keystream import Keystream, check_part
from confide.dp.sampling import FixedSizeSampler, PoissonSampler, sampler_for
from confide.errors import BadInput, Refused

ALARM = 5e-7


def inclusions(sampler, draws):
    """A matrix of 0 and 1: draws by records."""
    seen = np.zeros((draws, sampler.records))
    for row in seen:
        row[sampler.draw()] = 1
    return seen


@pytest.fixture(scope="module")
def seen():
    return inclusions(PoissonSampler(120, 0.1), 6000)


@pytest.mark.parametrize("rate", [0.003, 0.1, 1 / 256, 0.5, 0.97])
def test_each_record_is_included_as_often_as_the_binomial_says(rate):
    seen = inclusions(PoissonSampler(400, rate), 4000)
    z = (seen.sum(axis=0) - 4000 * rate) / math.sqrt(4000 * rate * (1 - rate))
    assert ALARM < stats.chi2.cdf(float(z @ z), 400) < 1 - ALARM
    assert abs(z.sum() / 20) < 5


def test_records_are_included_independently_of_each_other(seen):
    z = (seen - 0.1) / 0.3
    pairs = (z.T @ z)[np.triu_indices(120, 1)] / math.sqrt(6000)
    assert abs(pairs.mean()) * math.sqrt(len(pairs)) < 5
    assert abs((pairs**2).sum() - len(pairs)) < 6 * math.sqrt(2 * len(pairs))
    assert np.abs(pairs).max() < 6.5


def test_draws_are_independent_of_each_other(seen):
    z = (seen - 0.1) / 0.3
    assert abs((z[1:] * z[:-1]).mean()) * math.sqrt(z[1:].size) < 5


def test_batch_sizes_are_binomial(seen):
    sizes = seen.sum(axis=1).astype(int)
    edges = np.arange(5, 21)
    found = np.bincount(np.searchsorted(edges, sizes), minlength=len(edges) + 1)
    law = np.diff(np.concatenate([[0], stats.binom.cdf(edges, 120, 0.1), [1]]))
    assert stats.chisquare(found, law * len(sizes)).pvalue > 1e-6


def test_a_batch_may_be_empty():
    sampler = PoissonSampler(20, 0.05)
    empty = sum(len(sampler.draw()) == 0 for _ in range(2000))
    assert stats.binom.cdf(empty, 2000, 0.95**20) > ALARM
    assert stats.binom.sf(empty - 1, 2000, 0.95**20) > ALARM


def test_rate_one_includes_every_record():
    assert PoissonSampler(1000, 1.0).draw().tolist() == list(range(1000))
    assert PoissonSampler(7, 1.0, (1, 3)).draw().tolist() == [1, 4]


def test_a_tiny_rate_over_many_records_is_as_rare_as_it_says():
    found = sum(len(PoissonSampler(5_000_000, 1e-5).draw()) for _ in range(8))
    assert stats.poisson.cdf(found, 400) > ALARM
    assert stats.poisson.sf(found - 1, 400) > ALARM


def test_indices_are_ascending_and_whole_across_chunks():
    records = 2 * sampling.CHUNK + 17
    drawn = PoissonSampler(records, 0.9).draw()
    assert drawn.dtype == np.int64
    assert (np.diff(drawn) > 0).all()
    assert drawn[0] >= 0
    assert sampling.CHUNK * 2 <= drawn[-1] < records
    for begin in range(0, records, sampling.CHUNK):
        part = min(sampling.CHUNK, records - begin)
        inside = np.count_nonzero((drawn >= begin) & (drawn < begin + part))
        assert abs(inside - 0.9 * part) <= 5.2 * math.sqrt(0.09 * part) + 1


@given(st.floats(1e-9, 1.0), st.integers(-3, 3))
def test_a_record_is_included_exactly_if_its_64_bits_are_below_the_rate(rate, offset):
    threshold = int(Fraction(rate) * 2**64)
    assert Fraction(threshold, 2**64) <= Fraction(rate) < Fraction(threshold + 1, 2**64)
    coin = min(max(threshold + offset, 0), 2**64 - 1)
    first, rest = divmod(coin, 2**56)
    feed = [np.array([first], np.uint8), np.array([rest << 8], np.uint64).view(np.uint8)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Keystream, "take", lambda self, count: feed.pop(0))
        included = len(PoissonSampler(1, rate).draw())
    assert included == (coin < threshold)


def test_more_ties_than_fit_into_one_chunk_are_each_decided_by_their_own_bits(monkeypatch):
    monkeypatch.setattr(sampling, "CHUNK", 64)
    sampler = PoissonSampler(64, 0.5)
    words = [np.arange(begin, begin + 8, dtype=np.uint64) << np.uint64(58) for begin in range(0, 64, 8)]
    feed = [np.full(64, 128, np.uint8), *(word.view(np.uint8) for word in words)]
    monkeypatch.setattr(Keystream, "take", lambda self, count: feed.pop(0))
    monkeypatch.setattr(sampler, "_rest", 2**55)
    assert sampler.draw().tolist() == list(range(32))
    assert not feed


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_shares_of_all_ranks_are_the_whole_corpus_once(world):
    shares = [PoissonSampler(101, 1.0, (rank, world)).draw() for rank in range(world)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(101))
    some = [PoissonSampler(101, 0.5, (rank, world)).draw() for rank in range(world)]
    assert all((share % world == rank).all() for rank, share in enumerate(some))
    assert PoissonSampler(1, 0.5, (1, 2)).draw().tolist() == []


@pytest.mark.parametrize("batch", [1, 3, 9, 10, 11, 19, 20])
def test_a_batch_of_fixed_size_holds_every_record_equally_often(batch):
    seen = inclusions(FixedSizeSampler(20, batch), 3000)
    assert (seen.sum(axis=1) == batch).all()
    share = batch / 20
    if batch < 20:
        deviation = seen.sum(axis=0) - 3000 * share
        statistic = float(deviation @ deviation) / (3000 * share * (1 - share)) * 19 / 20
        assert ALARM < stats.chi2.cdf(statistic, 19) < 1 - ALARM


def test_every_set_of_fixed_size_is_equally_likely():
    sampler = FixedSizeSampler(6, 3)
    counts = {}
    for _ in range(6000):
        drawn = tuple(sampler.draw().tolist())
        counts[drawn] = counts.get(drawn, 0) + 1
    assert len(counts) == 20
    assert stats.chisquare(list(counts.values())).pvalue > 1e-6


def test_words_beyond_the_last_multiple_are_thrown_away(monkeypatch):
    records = 10**9
    limit = 2**64 // records * records
    feed = [[limit, 2**64 - 1, limit - 1, 5], [7] * 4]
    monkeypatch.setattr(Keystream, "take", lambda self, count: np.array(feed.pop(0), np.uint64).view(np.uint8))
    assert FixedSizeSampler(records, 3).draw().tolist() == [5, 7, records - 1]


def test_large_batches_of_fixed_size_take_several_rounds():
    drawn = FixedSizeSampler(1_000_000, 400_000).draw()
    assert len(np.unique(drawn)) == len(drawn) == 400_000


def test_batches_of_fixed_size_have_no_shares():
    with pytest.raises(Refused, match="cannot be drawn in shares"):
        FixedSizeSampler(10, 2, (0, 2))


@pytest.mark.parametrize("sampler", [PoissonSampler(10, 0.5), FixedSizeSampler(10, 5)])
def test_a_sampler_is_not_stored_and_shows_no_coins(sampler):
    with pytest.raises(Refused, match="not copied, pickled or saved"):
        pickle.dumps(sampler)
    assert repr(sampler) == f"{type(sampler).__name__}(secret)"


@pytest.mark.parametrize(
    "make",
    [
        lambda: PoissonSampler(0, 0.5),
        lambda: PoissonSampler(10, 0.0),
        lambda: PoissonSampler(10, 1.5),
        lambda: PoissonSampler(10, 1e-10),
        lambda: PoissonSampler(10, math.nan),
        lambda: PoissonSampler(10, 0.5, (2, 2)),
        lambda: FixedSizeSampler(10, 11),
        lambda: FixedSizeSampler(10, 0),
    ],
)
def test_sizes_and_rates_out_of_range_are_refused(make):
    with pytest.raises(BadInput):
        make()


def test_an_event_has_the_sampler_that_it_assumes():
    poisson, fixed = sampler_for("poisson", 30, 0.1, (1, 3)), sampler_for("fixed-size", 30, 0.1, (0, 1))
    assert (type(poisson), poisson.records, poisson.sampling_rate) == (PoissonSampler, 30, 0.1)
    assert (type(fixed), fixed.records, fixed.batch) == (FixedSizeSampler, 30, 3)
    assert set(sampler_for("poisson", 30, 1.0, (1, 3)).draw() % 3) == {1}
    with pytest.raises(BadInput, match="the sampler is poisson or fixed-size, got 'shuffled'"):
        sampler_for("shuffled", 30, 0.1, (0, 1))


@pytest.mark.parametrize("part", [(1, 1), (-1, 1), (0, 0), (0,), (0, 1, 2), [0, 1], (0.0, 1), (False, 1), "01", None])
def test_a_share_is_a_rank_below_the_number_of_ranks(part):
    with pytest.raises(BadInput, match="0 <= rank < world"):
        check_part(part)
    assert [check_part(right) for right in ((0, 1), (2, 3))] == [(0, 1), (2, 3)]


def test_samplers_take_corpora_and_rates_at_their_borders():
    assert PoissonSampler(10**9, 1e-9).sampling_rate == 1e-9
    assert FixedSizeSampler(10**9, 1).records == 10**9
    for make in (lambda: PoissonSampler(10**9 + 1, 0.5), lambda: FixedSizeSampler(10**9 + 1, 1)):
        with pytest.raises(BadInput, match="records"):
            make()
