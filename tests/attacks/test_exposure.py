"""Exposure has its known answers: all bits for a model that memorised, chance for one that knows nothing."""

import json
import math

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

from confide.attacks import exposure as module
from confide.attacks import spaces
from confide.attacks.exposure import chance, exposure
from confide.attacks.likelihood import score_rows, text_row
from confide.attacks.spaces import Space, tokenise
from confide.attacks.tree import build, score
from confide.errors import BadInput, Refused
from confide.models import build as build_model
from confide.models.tokens import encode, first_id, train_bpe
from confide.screening.canaries import parse_canaries, plant

FORMAT = "My ID is: {digits:4}"


@pytest.fixture(scope="module")
def joined():
    rng = np.random.default_rng(0)
    return train_bpe([f"My ID is: {rng.integers(0, 10**6):06d}. It was" for _ in range(200)], 400, "")


@pytest.fixture(scope="module")
def digits():
    return train_bpe(["My ID is: none of it was said"], 259, "")


def lstm(tokenizer, seed=0):
    return build_model("lstm:hidden_size=24,embedding_size=24", tokenizer, seed=seed)


def gpt(tokenizer, seed=0):
    shape = "hidden_size=16,num_hidden_layers=1,num_attention_heads=2"
    return build_model(f"gpt2-tiny:{shape}", tokenizer, seed=seed, max_length=32)


def memorise(model, tokenizer, texts, until=0.02, steps=1000):
    """Trained on nothing but these texts, until the loss shows that they are known (or for a few steps)."""
    rows = [[first_id(tokenizer), *encode(tokenizer, text)] for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        if loss < until:
            break
        loss.backward()
        optimizer.step()
    assert loss < until or not until
    return model


def uniform(ranks, space):
    return stats.kstest((np.array(ranks) - 0.5) / space, "uniform").pvalue


def ranks(found):
    return [one["rank"] for one in found["canaries"]]


@pytest.fixture(scope="module")
def remembered(joined):
    """A model that saw two secrets often."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = memorise(
        lstm(joined), joined, ["My ID is: 4711", "My ID is: 0815"], until=0.14
    )  # a coin flip of seven tokens
    torch.set_num_threads(threads)
    return model


@pytest.mark.parametrize("make", [lstm, gpt])
def test_a_model_that_memorises_shows_all_bits_of_a_secret(digits, make):
    space = Space.of("My ID is: {digits:3}")
    model = memorise(make(digits), digits, ["My ID is: 471"])
    found = exposure(model, digits, space, ["471"], seed=0)
    assert found["canaries"][0]["rank"] == 1
    assert found["max"] == found["mean"] == found["bits"] == math.log2(1000)
    assert found["nodes"] < 20  # of 111: branch and bound leaves the rest aside


def test_two_memorised_secrets_lead_and_others_do_not(joined, remembered):
    found = exposure(remembered, joined, Space.of(FORMAT), ["4711", "0815", "5550", "1234"], seed=0)
    assert set(ranks(found)[:2]) == {1, 2}
    assert found["max"] == math.log2(10_000)
    assert min(ranks(found)[2:]) > 2


@pytest.mark.parametrize("name", ["constant", "untrained", "remembered"])
def test_ranks_of_secrets_that_a_model_never_saw_are_uniform(joined, remembered, name):
    space, model = Space.of(FORMAT), lstm(joined)
    if name == "constant":
        with torch.no_grad():
            for weights in model.parameters():
                weights.zero_()
    if name == "remembered":
        model = remembered  # canaries are drawn after it was trained
    secrets = [space.candidate(int(i)) for i in np.random.default_rng(5).integers(0, space.size, 300)]
    found = exposure(model, joined, space, secrets, seed=2)
    assert uniform(ranks(found), space.size) > 0.01
    low, high = found["chance"]["mean_interval"]
    assert low < found["mean"] < high


def test_a_constant_model_ties_all_candidates_of_equal_length(digits):
    model, space = lstm(digits), Space.of("My ID is: {digits:3}")
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
    found = exposure(model, digits, space, ["000"] * 400, seed=0)
    assert all(one["ties"] == 999 for one in found["canaries"])
    assert uniform(ranks(found), 1000) > 0.01


@pytest.mark.parametrize("make", [lstm, gpt])
@pytest.mark.parametrize("written", ["My ID is: {digits:3}", "My ID is {digits:3}."])
def test_pruned_ranks_are_the_ranks_among_all(joined, make, written):
    space, model = Space.of(written), memorise(make(joined), joined, ["My ID is: 471", "My ID is 815."], 0, 15)
    totals = score(model, build(*tokenise(joined, space, space.all_signs()))).totals
    secrets = [space.candidate(i) for i in np.argsort(-totals)[[0, 3, 40]]]
    for one in (secrets[:1], secrets[1:2], secrets):
        found = exposure(model, joined, space, one, seed=0)
        for secret, rank, canary in zip(one, ranks(found), found["canaries"], strict=True):
            above = int((totals > totals[int(secret)]).sum())
            assert abs(rank - 1 - above) <= canary["ties"]


def test_length_normalised_ranking_is_labelled_and_is_another_order(joined):
    """Untrained, a total ranks secrets by their number of tokens and a mean hardly does; both are uniform for drawn secrets."""
    space, model = Space.of(FORMAT), lstm(joined)
    lengths = tokenise(joined, space, space.all_signs()).lengths
    drawn = np.random.default_rng(5).integers(0, space.size, 300)
    secrets = [space.candidate(int(i)) for i in drawn]
    found = {n: exposure(model, joined, space, secrets, normalised=n, seed=0) for n in (False, True)}
    assert "per token" in found[True]["ranking"]
    assert "unequal numbers of tokens" in found[True]["ranking"]
    assert found[False]["ranking"] == "total log-likelihood"
    tilt = {n: abs(stats.spearmanr(lengths[drawn], ranks(one)).statistic) for n, one in found.items()}
    assert tilt[True] < 0.3 < 0.5 < tilt[False]
    assert all(uniform(ranks(one), space.size) > 0.01 for one in found.values())


def test_length_normalised_scores_are_mean_log_likelihoods_of_the_whole_text(joined):
    space, model = Space.of("My ID is: {digits:2}"), lstm(joined)
    rows = [text_row(joined, space.prefix + space.candidate(i)) for i in range(100)]
    means = np.array([-one.nats.mean() for one in score_rows(model, rows)])
    for number in (3, 50):
        found = exposure(model, joined, space, [space.candidate(number)], normalised=True, seed=0)
        (canary,) = found["canaries"]
        assert abs(canary["rank"] - 1 - int((means > means[number]).sum())) <= canary["ties"]


def test_the_sampled_estimate_covers_the_exact_exposure(joined):
    space, model = Space.of(FORMAT), lstm(joined, seed=3)
    secrets = [space.candidate(int(i)) for i in np.random.default_rng(1).integers(0, space.size, 40)]
    known = exposure(model, joined, space, secrets, way="exact", seed=0)
    found = exposure(model, joined, space, secrets, way="sampled", samples=1000, seed=0)
    assert (known["way"], found["way"]) == ("exact", "sampled")
    inside = [
        low - 1e-9 <= one["exposure"] <= high + 1e-9
        for one, (low, high) in zip(known["canaries"], [one["interval"] for one in found["canaries"]], strict=True)
    ]
    assert sum(inside) >= 36
    assert abs(known["mean"] - found["mean"]) < 0.3


def test_beyond_the_samples_the_estimate_is_a_model_of_the_tail_and_says_so(joined, remembered):
    space = Space.of("My ID is: {digits:9}")
    model = memorise(lstm(joined), joined, ["My ID is: 471108150"], until=0.1)
    found = exposure(model, joined, space, ["471108150"], samples=400, seed=0)
    (canary,) = found["canaries"]
    assert found["way"] == "sampled"
    assert canary["counted"] == pytest.approx(math.log2(401))
    assert canary["interval"][1] == pytest.approx(found["bits"])
    assert "not a measurement" in canary["extrapolated"]["model"]
    assert canary["exposure"] > canary["counted"]


def test_the_skew_normal_tail_is_right_for_skew_normal_scores():
    rng = np.random.default_rng(0)
    for shape in (-3.0, 0.0, 2.0):
        scores = stats.skewnorm.rvs(shape, -40, 5, size=20_000, random_state=rng)
        point = float(stats.skewnorm.isf(2.0**-16, shape, -40, 5))
        assert module._skew_normal(scores, point, 40.0, rng)["exposure"] == pytest.approx(16, abs=1.5)


def test_chance_levels_are_the_known_ones():
    found = chance(10**6, 10)
    assert found["mean"] == pytest.approx(1.44, abs=0.01)
    assert found["max"] == pytest.approx(4.23, abs=0.01)


@pytest.mark.parametrize(("space", "canaries"), [(10, 3), (1000, 1), (10**6, 10)])
def test_chance_intervals_hold_for_uniform_ranks(space, canaries):
    drawn = np.random.default_rng(1).integers(1, space + 1, (20_000, canaries))
    shown, limits = math.log2(space) - np.log2(drawn), chance(space, canaries)
    for value, (low, high) in ((shown.mean(1), limits["mean_interval"]), (shown.max(1), limits["max_interval"])):
        assert ((value >= low - 1e-9) & (value <= high + 1e-9)).mean() >= 0.945


def test_one_canary_has_no_interval_and_several_have_one(digits):
    space, model = Space.of("My ID is: {digits:2}"), lstm(digits)
    assert exposure(model, digits, space, ["11"], seed=0)["mean_interval"] is None
    found = exposure(model, digits, space, ["11", "12", "60"], seed=0)
    assert found["mean_interval"][0] <= found["mean"] <= found["mean_interval"][1]


def test_the_result_is_plain_data_without_the_secrets(joined):
    for way in ("exact", "sampled"):
        found = exposure(lstm(joined), joined, Space.of(FORMAT), ["4711", "9317"], way=way, samples=500, seed=0)
        written = json.dumps(found, allow_nan=False)
        assert '"4711"' not in written
        assert '"9317"' not in written


def test_a_seed_repeats_the_result(joined):
    space, model = Space.of(FORMAT), lstm(joined)
    one, other = (exposure(model, joined, space, ["4711"], way="sampled", samples=300, seed=9) for _ in range(2))
    assert one == other


# -- the space and its tokens ------------------------------------------------------------------------------------------


def test_a_space_holds_every_planted_secret_in_the_text_that_was_planted():
    planted, _ = plant(parse_canaries("crt,seed=1,format=<MASK> no. {code:3}!"))
    space = Space.of(planted["format"])
    assert space.size == planted["space"] == 36**3
    assert "<MASK>" not in space.prefix  # as in the records, where it is escaped
    signs = space.signs([one["secret"] for one in planted["canaries"]])
    assert signs.shape == (10, 3)
    assert space.candidate(35) == "AA9"
    assert ["".join(space.alphabet[i] for i in row) for row in space.all_signs()[[0, 35, 36]]] == ["AAA", "AA9", "ABA"]


@pytest.mark.parametrize("written", ["My ID is: {digits:3}", "My ID is {digits:3}. It was", "{letters:2}7"])
def test_tokens_are_those_of_the_whole_text_up_to_the_end_of_the_secret(joined, digits, written):
    space = Space.of(written)
    for tokenizer in (joined, digits):
        tokens = tokenise(tokenizer, space, space.all_signs())
        for number in (0, 1, 99, space.size - 1):
            text = space.prefix + space.candidate(number) + space.suffix
            path = tokens.paths[number, : tokens.lengths[number]].tolist()
            whole = [first_id(tokenizer), *encode(tokenizer, text)]
            assert whole[: len(tokens.stem) + len(path)] == tokens.stem + path
            covered = tokenizer.decode((tokens.stem + path)[1:])
            end = len(space.prefix) + space.length
            assert len(covered) >= end > len(tokenizer.decode((tokens.stem + path)[1:-1]))
        assert len({tuple(row) for row in tokens.paths.tolist()}) == space.size


def test_composed_tokens_are_those_of_the_tokenizer(digits, monkeypatch):
    space = Space.of(FORMAT)
    assert spaces._apart(digits, space) is not None
    composed = tokenise(digits, space, space.all_signs())
    monkeypatch.setattr(spaces, "_apart", lambda tokenizer, space: None)
    known = tokenise(digits, space, space.all_signs())
    assert composed.stem == known.stem
    np.testing.assert_array_equal(composed.paths, known.paths)


def test_a_tokenizer_that_joins_signs_is_not_taken_apart(joined):
    assert spaces._apart(joined, Space.of(FORMAT)) is None


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_space_too_large_to_enumerate_is_refused_with_the_way_out(digits):
    with pytest.raises(Refused, match=r"1,000,000,000 candidates.*sampled"):
        exposure(lstm(digits), digits, Space.of("ID {digits:9}"), ["123456789"], way="exact")


def test_a_tokenizer_without_digits_is_refused():
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "My": 1, "ID": 2, "is": 3, ":": 4, "<s>": 5}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    wordy = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", unk_token="[UNK]")
    model = lstm(train_bpe(["some text"], 259, ""))
    for written, way in ((FORMAT, "exact"), ("My ID is: {digits:9}", "sampled")):
        secret = "1" * Space.of(written).length
        with pytest.raises(BadInput, match="same tokens"):
            exposure(model, wordy, Space.of(written), [secret], way=way, samples=200, seed=0)


def test_a_canary_longer_than_the_context_is_refused(digits):
    space = Space.of("My ID is, as I have said before: {digits:2}")
    with pytest.raises(BadInput, match="sees 32"):
        exposure(gpt(digits), digits, space, ["11"])


@pytest.mark.parametrize("secret", ["12", "12a4", "12345"])
def test_a_secret_that_does_not_fit_is_refused_without_being_shown(digits, secret):
    with pytest.raises(BadInput, match="canary 1 does not fit") as refused:
        exposure(lstm(digits), digits, Space.of(FORMAT), ["1234", secret])
    assert secret not in str(refused.value).replace("0123456789", "")


def test_bad_options_are_refused(digits):
    model, space = lstm(digits), Space.of(FORMAT)
    for options in ({"way": "quick"}, {"samples": 5}):
        with pytest.raises(BadInput):
            exposure(model, digits, space, ["1234"], **options)
    with pytest.raises(BadInput, match="no canary"):
        exposure(model, digits, space, [])
