"""Noise is Gaussian to its tails, fresh everywhere, and there exactly once. Limits have a false alarm below 1e-6."""

import copy
import math
import os
import pickle
import signal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from confide.dp import keystream, noise
from confide.dp.clipping import PAID
from confide.dp.keystream import Keystream
from confide.dp.noise import PAIRS, GaussianNoise, Lane, cell, room
from confide.errors import BadInput, Refused

MANY = 10_000_019
BLOCK = 2 * PAIRS
Z = 5.0  # standard deviations: two-sided 5.7e-7


@pytest.fixture(params=["compiled", "torch"])
def way(request, monkeypatch):
    """Both ways to draw: the loops of noise.c and keystream.c, and torch and a library where there was no compiler."""
    if request.param == "torch":
        monkeypatch.setattr(noise, "COMPILED", None)
        monkeypatch.setattr(keystream, "COMPILED", None)
    elif noise.COMPILED is None:
        pytest.skip("confide was installed without a C compiler")


@pytest.fixture(scope="module", params=["compiled", "torch"])
def draws(request):
    if request.param == "compiled" and noise.COMPILED is None:
        pytest.skip("confide was installed without a C compiler")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(noise, "COMPILED", None)
            patch.setattr(keystream, "COMPILED", None)
        return fresh(MANY)


def fresh(size, std=1.0, source=None):
    """What the lattice adds to zeros, in double precision: draws but for their last bits."""
    out = torch.zeros(size, dtype=torch.float64)
    (source or GaussianNoise()).add_(out, std)
    return out.numpy()


def drawn(size, std=1.0):
    """Torch's draws, before the lattice."""
    out = torch.full((size,), math.nan, dtype=torch.float64)
    Lane().draw(out, std)
    return out.numpy()


def drawn_by(way, radii, angles, fresh):
    """The draws of these words before the lattice, by one of the two ways."""
    words = np.concatenate([np.asarray(radii, np.int64), np.asarray(angles, np.int64)])
    fresh, out = np.asarray(fresh, np.uint64), np.full(len(words), math.nan)
    if way == "compiled":
        if noise.COMPILED is None:
            pytest.skip("confide was installed without a C compiler")
        law = (1.0, noise.RARE_LOW, noise.RARE_HIGH)
        noise.COMPILED.confide_draw(words.ctypes.data, len(radii), fresh.ctypes.data, *law, out.ctypes.data)
        return out
    lane, u = Lane(), np.abs(words[: len(radii)] * 2.0**-63 + 2.0**-64)
    needed = fresh[(u < noise.RARE_LOW) | (u > noise.RARE_HIGH)]
    lane.stream = SimpleNamespace(take=lambda count: needed.view(np.uint8)[:count])
    lane.turn(torch.from_numpy(words), torch.from_numpy(out), 1.0)
    return out


def uncorrelated(a, b):
    """Neither the values nor their squares are correlated."""
    n = min(len(a), len(b))
    a, b = a[:n].astype(float), b[:n].astype(float)
    return all(abs(np.mean(x * y)) < Z / math.sqrt(n) for x, y in [(a, b), ((a**2 - 1) / 2**0.5, (b**2 - 1) / 2**0.5)])


def test_the_moments_are_those_of_the_normal_distribution(draws):
    z = draws.astype(float)
    assert abs(z.mean()) < Z / math.sqrt(MANY)
    assert abs(z.var() - 1) < Z * math.sqrt(2 / MANY)
    assert abs(np.mean(z**3)) < Z * math.sqrt(15 / MANY)
    assert abs(np.mean(z**4) - 3) < Z * math.sqrt(96 / MANY)


def test_the_distribution_is_normal_by_kolmogorov_and_smirnov(draws):
    assert stats.kstest(draws[: 4 * BLOCK], "norm").pvalue > 1e-6


@pytest.mark.parametrize("limit", [2.0, 3.0, 4.0, 4.5, 5.0])
def test_the_tails_have_the_normal_mass(draws, limit):
    low, high = stats.poisson.ppf([2e-7, 1 - 2e-7], stats.norm.sf(limit) * MANY)
    assert low <= np.count_nonzero(draws > limit) <= high
    assert low <= np.count_nonzero(draws < -limit) <= high


def test_small_values_have_the_normal_mass(draws):
    for limit in (1e-2, 1e-3, 1e-4):
        expected = (2 * stats.norm.cdf(limit) - 1) * MANY
        low, high = stats.poisson.ppf([5e-7, 1 - 5e-7], expected)
        assert low <= np.count_nonzero(np.abs(draws) < limit) <= high


def test_no_draw_is_infinite_or_undefined_and_zero_is_as_rare_as_any_cell(draws):
    assert np.isfinite(draws).all()
    assert np.count_nonzero(draws == 0) <= 3  # 0.001 expected


def test_both_halves_of_a_pair_neighbours_blocks_and_fills_are_uncorrelated(draws):
    pairs = draws[:BLOCK]
    assert uncorrelated(pairs[:PAIRS], pairs[PAIRS:])
    assert uncorrelated(draws[:-1], draws[1:])
    assert uncorrelated(draws[:-BLOCK], draws[BLOCK:])
    source = GaussianNoise()
    assert uncorrelated(fresh(BLOCK, source=source), fresh(BLOCK, source=source))
    assert uncorrelated(fresh(BLOCK), fresh(BLOCK))


def test_the_radius_and_the_angle_of_a_pair_have_their_laws(draws):
    x, y = draws[:PAIRS].astype(float), draws[PAIRS:BLOCK].astype(float)
    assert stats.kstest(x**2 + y**2, stats.chi2(2).cdf).pvalue > 1e-6
    assert stats.kstest(np.arctan2(y, x), stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 1e-6


@pytest.mark.parametrize("pairs", [1, 2, 3, 17, 511, 512])
def test_both_ways_make_the_same_draws_of_the_same_coins(pairs):
    radii, angles, fresh = np.random.default_rng(pairs).integers(-(2**63), 2**63 - 1, (3, pairs))
    found, other = (drawn_by(way, radii, angles, fresh.view(np.uint64)) for way in ("compiled", "torch"))
    assert np.allclose(found, other, rtol=0, atol=1e-14)
    assert len(np.unique(found)) == 2 * pairs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 1023, 1024, 1025, 5001])
def test_compiled_noise_is_the_documented_function_of_its_keystream(monkeypatch, size, dtype):
    """Blocks, words, pairs, fresh words and lattice, step by step in Python; most radii are given fresh words here."""
    if noise.COMPILED is None:
        pytest.skip("confide was installed without a C compiler")
    monkeypatch.setattr(noise, "RARE_LOW", 0.7)
    key, nonce, std, pairs = os.urandom(32), b"\xff" * 15 + b"\xf0", 0.37, (size + 1) // 2
    cipher = Cipher(algorithms.AES(key), modes.CTR(nonce)).encryptor()
    words = np.frombuffer(cipher.update(bytes(32 * pairs)), np.int64)
    wanted = np.random.default_rng(size).normal(size=2 * pairs)
    sums = torch.tensor(wanted[:size], dtype=dtype)
    for at in range(0, pairs, 512):
        n = min(512, pairs - at)
        coins, fresh = words[2 * at : 2 * (at + n)], words[2 * (pairs + at) : 2 * (pairs + at + n) : 2].view(np.uint64)
        z = drawn_by("torch", coins[:n], coins[n:], fresh) * (std / cell(std))
        part = torch.tensor(wanted[2 * at : 2 * (at + n)], dtype=dtype).numpy().astype(float)
        wanted[2 * at : 2 * (at + n)] = (np.rint(part / cell(std)) + np.rint(z)) * cell(std)
    monkeypatch.setattr(keystream, "urandom", lambda count: key if count == 32 else nonce)
    GaussianNoise().add_(sums, std)
    apart = np.abs(sums.numpy().astype(float) - wanted[:size])
    assert (apart <= (2 * cell(std) if dtype == torch.float64 else 1e-6 * np.abs(wanted[:size]) + 1e-9)).all()


def test_a_counter_that_wraps_around_gives_what_the_library_gives(monkeypatch):
    for nonce in (b"\xff" * 16, bytes(8) + b"\xff" * 7 + b"\xf0", os.urandom(16)):
        key = os.urandom(32)
        monkeypatch.setattr(keystream, "urandom", lambda count, key=key, nonce=nonce: key if count == 32 else nonce)
        stream, cipher = Keystream(160_000), Cipher(algorithms.AES(key), modes.CTR(nonce)).encryptor()
        for count in (16, 112, 128, 144, 240, 256, 272, 528, 16_368, 16_384, 16_400, 80_000):
            assert stream.take(count).tobytes() == cipher.update(bytes(count))


@pytest.mark.parametrize("size", [0, 1, 3, 4097, BLOCK + 1, 3 * BLOCK + 5])
def test_every_number_of_any_size_is_noised_once(size, way):
    assert len(np.unique(fresh(size))) >= size - 3 - 1e-4 * size  # draws meet in a cell of the lattice now and then


@pytest.mark.parametrize("std", [1e-14, 0.37, 25.0, 1e14])
def test_the_standard_deviation_is_the_one_asked_for(std, way):
    out = fresh(BLOCK, std) / std
    assert abs(out.var() - 1) < Z * math.sqrt(2 / BLOCK)


def test_two_sources_and_two_fills_differ():
    source = GaussianNoise()
    first, second, other = fresh(64, source=source), fresh(64, source=source), fresh(64)
    assert not np.isin(second, first).any()
    assert not np.isin(other, first).any()


def test_two_lanes_never_repeat_each_other(draws):
    heads = [tuple(draws[begin : begin + 4]) for begin in range(0, MANY - BLOCK, BLOCK)]
    assert len(set(heads)) == len(heads)


def test_a_forked_child_has_coins_of_its_own():
    source = GaussianNoise()
    fresh(64, source=source)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, fresh(64, source=source).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(read, 4096))
    assert len(theirs) == 64
    assert not np.isin(theirs, fresh(64, source=source)).any()


def test_a_fork_is_noticed_even_if_the_process_number_comes_back(monkeypatch):
    stream = Keystream(64)
    keys = []
    monkeypatch.setattr(keystream, "urandom", lambda count: keys.append(count) or os.urandom(count))
    stream.take(64)
    assert keys == []
    monkeypatch.setattr(keystream, "_forks", keystream._forks + 1)
    stream.take(64)
    assert keys == [32, 16]


def test_a_key_is_used_up(monkeypatch):
    monkeypatch.setattr(keystream, "PER_KEY", 128)
    stream, keys = Keystream(64), []
    monkeypatch.setattr(keystream, "urandom", lambda count: keys.append(count) or os.urandom(count))
    stream.take(64)
    stream.take(64)
    assert keys == []
    stream.take(64)
    assert keys == [32, 16]


def test_the_keystream_is_aes_256_in_counter_mode(monkeypatch):
    monkeypatch.setattr(keystream, "urandom", bytes)
    head = Keystream(64).take(16).tobytes()
    assert head.hex() == "dc95c078a2408989ad48a21492842087"  # NIST: AES-256 of the zero block under the zero key


@pytest.mark.parametrize("secretive", [lambda: GaussianNoise(), lambda: Keystream(16)])
@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_coins_are_not_copied_or_stored(secretive, copied):
    with pytest.raises(Refused, match="not copied, pickled or saved"):
        copied(secretive())


@pytest.mark.parametrize("by", ["compiled", "torch"])
@pytest.mark.parametrize(
    ("word", "least"), [(0, 2.0**-128), (-1, 2.0**-63)]
)  # of a coin of zero, the next bits; or ones
def test_coins_that_all_fall_alike_still_give_finite_noise(by, word, least):
    fresh = np.full(500, word, np.int64).view(np.uint64)
    out = drawn_by(by, np.full(500, word), np.full(500, word), fresh)
    assert np.isfinite(out).all()
    assert np.abs(out).max() == pytest.approx(math.sqrt(-2 * math.log(least)), rel=1e-12)


@pytest.mark.parametrize("by", ["compiled", "torch"])
def test_a_coin_at_the_upper_end_gives_a_small_radius_and_not_zero(by):
    out = drawn_by(by, np.full(8, 2**63 - 1), np.full(8, 2**60), np.full(8, 2**63 - 1))  # angles beside the axes
    assert (out != 0).all()
    assert np.abs(out).max() < 1e-8


def test_radii_at_both_ends_of_their_range_are_refined_alike():
    """Where a coin alone is too coarse, both ways give a radius its pair's fresh word and agree to their last bits."""
    radii = np.array([0, 1, 2**40, 2**43, 2**63 - 1, 2**63 - 2**40, -1, -(2**42), 2**61, 2**62], np.int64)
    angles, fresh = np.arange(10) * 2**59, np.arange(1, 11).astype(np.uint64) * np.uint64(2**60)
    found, other = (drawn_by(by, radii, angles, fresh) for by in ("compiled", "torch"))
    assert np.allclose(found, other, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 1e-16, 1e16, True, "1"])
def test_a_std_that_is_no_noise_is_refused(std):
    with pytest.raises(BadInput, match="standard deviation"):
        fresh(4, std)


@pytest.mark.parametrize("out", [torch.zeros(4, dtype=torch.bfloat16), torch.zeros(4, 4).T[:2], torch.zeros(4).int()])
def test_tensors_that_cannot_hold_the_noise_are_refused(out):
    with pytest.raises(BadInput, match="contiguous float32 or float64"):
        GaussianNoise().add_(out, 1.0)


def test_filling_leaves_torchs_number_of_threads_alone():
    before = torch.get_num_threads()
    fresh(BLOCK)
    assert torch.get_num_threads() == before


def test_noise_first_drawn_in_inference_mode_can_be_drawn_outside_of_it():
    source = GaussianNoise()
    with torch.inference_mode():
        fresh(8, source=source)
    assert not np.isnan(fresh(8, source=source)).any()


# --- the lattice: what the last bits of a release tell


def low_bits(released, std):
    """Of outcomes near zero, the last seven bits in units of the lattice; None if an outcome lies beside it."""
    near = released[np.abs(released) < 2**24 * cell(std)].astype(float) / cell(std)  # float32 holds them exactly
    assert len(near) > 1000
    return np.bincount(near.astype(np.int64) & 127, minlength=128) if (near == np.rint(near)).all() else None


def noised_twice(std, add):
    """Releases of a sum of nothing and of a sum far from it, a million numbers each."""
    first, second = torch.zeros(1_000_003), torch.full((1_000_003,), 0.75 * std)
    add(first, std)
    add(second, std)
    return low_bits(first.numpy(), std), low_bits(second.numpy(), std)


@pytest.mark.parametrize("std", [1.0, 0.37, 3e-4])
def test_the_last_bits_do_not_tell_what_the_noise_was_added_to(std, way):
    for bits in noised_twice(std, GaussianNoise().add_):
        assert bits is not None
        assert stats.chisquare(bits).pvalue > 1e-6


def test_noise_added_in_floating_point_is_caught_by_its_last_bits():
    """Mironov's attack on what engines do that add drawn floats to a sum: one look tells the two sums apart."""

    def add(sums, std):
        for part in torch.split(sums, BLOCK):
            part += torch.from_numpy(drawn(len(part), std)).float()

    of_nothing, of_something = noised_twice(1.0, add)
    assert of_nothing is None  # draws near zero are spaced more finely than the lattice
    assert np.flatnonzero(of_something).tolist() == [0]  # what was added to 0.75 lost its last bits


@pytest.mark.parametrize(
    "way", ["torch"], indirect=True
)  # the compiled loops draw for themselves: see the lattice's other tests
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    x=st.floats(-1e6, 1e6, width=32), z=st.floats(-12, 12), std=st.floats(1e-6, 1e6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_a_release_is_the_rounded_sum_plus_rounded_noise_exactly(way, x, z, std, dtype):
    lane, sums, step = Lane(), torch.tensor([x], dtype=dtype), Fraction(cell(std))
    lane.draw = lambda out, units: out.fill_(z * units)
    lane.add(sums, std)
    exact = step * (round(Fraction(x) / step) + round(Fraction(z * (std / cell(std)))))
    wanted = torch.tensor([float(exact)], dtype=torch.float64).to(dtype)  # float() and .to() round correctly
    assert torch.equal(sums, wanted)


@given(sigma=st.floats(1e-3, 1e3), numbers=st.integers(1, 10**11), clip=st.floats(1e-9, 1e6))
def test_the_lattice_is_paid_for_by_noise(sigma, numbers, clip):
    try:
        std = PAID * room(sigma, numbers) * sigma * clip
    except BadInput:
        assert sigma * math.sqrt(numbers) > 2.0**30
        return
    assert std >= sigma * (clip + cell(std) * math.sqrt(numbers))
    assert numbers > 10**9 or sigma > 10 or room(sigma, numbers) < 1.001


def test_noise_too_large_for_the_lattice_is_refused():
    with pytest.raises(BadInput, match="train fewer parameters or take less noise"):
        room(1e6, 10**9)


@pytest.mark.parametrize("size", [0, 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_number_of_a_sum_is_noised_once(size, dtype):
    sums = torch.full((size,), 100.0, dtype=dtype)
    GaussianNoise().add_(sums, 2.0)
    z = (sums.numpy().astype(float) - 100) / 2
    assert np.count_nonzero(z == 0) <= 1e-3 * size  # float32 rounds what it adds to 100
    if size > 1:
        assert abs(z.mean()) < Z / math.sqrt(size)
        assert abs(z.var() - 1) < Z * math.sqrt(2 / size)


def test_a_sum_of_any_shape_is_noised_in_place():
    sums = torch.zeros(3, 5, 7)
    GaussianNoise().add_(sums, 1.0)
    assert (sums != 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_beside_the_lattice_are_released_on_it(dtype, way):
    std = 1.0
    sums = torch.from_numpy(np.random.default_rng(0).normal(scale=1e-3, size=100_003)).to(dtype)
    assert (sums.double() / cell(std) != (sums.double() / cell(std)).round()).double().mean() > 0.4
    GaussianNoise().add_(sums, std)
    near = sums.double()[sums.abs() < 2**20 * cell(std)] if dtype == torch.float32 else sums.double()
    assert len(near) > 10
    assert torch.equal(near / cell(std), (near / cell(std)).round())


@pytest.mark.parametrize("count", [-16, 17, 1 << 24])
def test_a_keystream_gives_no_more_than_it_has_room_for(count, way):
    with pytest.raises(BadInput, match="at most 16 bytes at a time"):
        Keystream(16).take(count)


def test_round_keys_are_wiped_with_their_key():
    if keystream.COMPILED is None:
        pytest.skip("confide was installed without a C compiler")
    stream = Keystream(16)
    keys = stream._keys
    assert keys.any()
    del stream
    assert not keys.any()


def test_a_large_draw_in_a_forked_child_ends():
    """OpenMP's threads do not live on in a child, where torch itself would wait for them."""
    if noise.COMPILED is None:
        pytest.skip("confide was installed without a C compiler")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    source, stream, sums = GaussianNoise(), Keystream(1 << 20), torch.zeros(100_000)
    source.add_(sums, 1.0)
    stream.take(1 << 20)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        source.add_(sums, 1.0)
        stream.take(1 << 20)
        os._exit(0)
    torch.set_num_threads(before)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(("std", "step"), [(1.0, -32), (1.5, -32), (1.999, -32), (2.0, -31), (0.999, -33), (1e15, 17)])
def test_a_cell_is_the_largest_power_of_two_that_fits_into_the_noise_two_to_the_32_times(std, step):
    assert cell(std) == 2.0**step
    assert cell(std) <= std * 2.0**-32 < 2 * cell(std)


def test_the_room_for_the_lattice_grows_with_the_root_of_the_parameters():
    assert room(1.0, 2**40) == 1 + 2.0**-10
    assert room(4.0, 2**20) == 1 + 2.0**-18
    assert room(2.0**31, 1) == 3.0
    with pytest.raises(BadInput, match="too large for 1 parameters"):
        room(2.0**31 * 1.001, 1)


def test_a_key_gives_no_more_at_a_time_than_it_may_give_in_all(monkeypatch):
    monkeypatch.setattr(keystream, "PER_KEY", 128)
    stream = Keystream(16)
    for blocks in (9, -1):
        with pytest.raises(BadInput, match="a keystream gives at most 128 bytes at a time"):
            stream.reserve(blocks)
    if keystream.COMPILED is not None:
        first = stream.reserve(8)[1:]
        assert stream.reserve(8)[1:] != first  # the key is used up, and another has another counter
        assert stream._left == 0
