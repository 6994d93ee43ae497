"""Membership inference on models whose answer is known, and its statistics against direct counts and simulations."""

import json

import numpy as np
import pytest
import torch
import transformers as hf

from confide.attacks import membership as module
from confide.attacks.blind import blind_scores
from confide.attacks.candidates import Candidate, groups_of
from confide.attacks.likelihood import Row, score_rows
from confide.attacks.membership import candidate_scores, membership
from confide.attacks.protocols import PRESETS, generated_like, protocol
from confide.attacks.statistics import (
    auc,
    balanced_accuracy,
    best_threshold,
    clopper_pearson,
    measure,
    roc,
    split,
)
from confide.errors import BadInput
from confide.models.lstm import LstmConfig, LstmForCausalLM

VOCABULARY = 128  # a byte each


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr("confide.attacks.protocols.SHUFFLES", 60)
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def untrained():
    return LstmForCausalLM(LstmConfig(VOCABULARY, 24, 24))


def of(texts):
    return [Candidate(Row([0, *text.encode()]), text) for text in texts]


def codes(count, seed, length=12):
    draw = np.random.default_rng(seed)
    return ["".join(draw.choice(list("abcdefgh"), length)) for _ in range(count)]


@pytest.fixture(scope="module")
def memoriser():
    """A model that was trained on some texts until it knew them by heart."""
    torch.manual_seed(0)
    texts = codes(30, seed=1)
    model = LstmForCausalLM(LstmConfig(VOCABULARY, 32, 64, tie_word_embeddings=False, initializer_range=1.0))
    ids = torch.tensor([one.row.ids for one in of(texts)])
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(120):
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
    assert loss.item() < 1.2 * np.log(30) / 12  # no model of thirty texts can do better than log 30 a text
    return model, of(texts)


def test_auc_counts_pairs_and_half_of_ties():
    draw = np.random.default_rng(0)
    mine, theirs = draw.integers(0, 9, 40), draw.integers(0, 7, 30)
    pairs = [(a > b) + (a == b) / 2 for a in mine for b in theirs]
    assert auc(mine, theirs) == pytest.approx(np.mean(pairs))
    assert auc(mine, theirs) + auc(theirs, mine) == pytest.approx(1)
    assert auc([1, 1], [1]) == 0.5
    halves = split(40, 30, draw)
    assert measure(mine, theirs, halves, draw, bootstraps=0)["auc"]["value"] == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize("fpr", [0.01, 0.001])
def test_true_positive_rates_are_the_best_of_all_thresholds_that_keep_the_false_ones(fpr):
    draw = np.random.default_rng(1)
    mine, theirs = draw.normal(1, 1, 300).round(1), draw.normal(0, 1, 1500).round(1)

    def best(false):
        return max((mine >= t).mean() for t in [*mine, *theirs, np.inf] if (theirs >= t).mean() <= false)

    found = measure(mine, theirs, split(300, 1500, draw), draw, bootstraps=50)[f"tpr_at_{fpr:g}"]
    assert found["value"] == pytest.approx(best(fpr))
    assert found["low"] <= found["value"] <= found["high"]
    assert roc([1, 1], [1] * 1000)[:-1] == [
        [rate, 0.0] for rate, _ in roc([1, 1], [1] * 1000)[:-1]
    ]  # a constant score finds nobody
    assert roc(mine, theirs)[-1] == [1.0, 1.0]
    assert len(roc(mine, theirs)) <= 200
    for rate, found in roc(mine, theirs):
        assert found == best(rate)


def test_the_best_threshold_is_best_and_lies_in_the_middle():
    draw = np.random.default_rng(2)
    mine, theirs = draw.normal(0.5, 1, 50).round(1), draw.normal(0, 1, 40).round(1)
    every = [balanced_accuracy(mine, theirs, t) for t in [*mine, *theirs, np.inf]]
    assert balanced_accuracy(mine, theirs, best_threshold(mine, theirs)) == pytest.approx(max(every))
    assert best_threshold([5, 6], [1, 2]) == 3.5
    assert best_threshold([1], [2]) in (-np.inf, np.inf)
    assert np.isfinite(best_threshold([0, np.inf], [-np.inf, -np.inf]))


def test_accuracy_of_noise_is_one_half_on_disjoint_halves_and_more_in_hindsight():
    draw = np.random.default_rng(3)
    honest, hindsight = [], []
    for _ in range(300):
        mine, theirs = draw.normal(size=30), draw.normal(size=30)
        honest.append(measure(mine, theirs, split(30, 30, draw), draw, bootstraps=0)["accuracy"]["value"])
        hindsight.append(balanced_accuracy(mine, theirs, best_threshold(mine, theirs)))
    assert abs(np.mean(honest) - 0.5) < 4 * np.std(honest) / 300**0.5
    assert np.mean(hindsight) > 0.55


def test_accuracy_is_counted_on_the_half_that_did_not_choose():
    draw = np.random.default_rng(4)
    mine, theirs = draw.normal(0.7, 1, 60), draw.normal(0, 1, 50)
    halves = split(60, 50, draw)
    assert halves.members.sum() == 30
    ways = []
    for chosen in (False, True):
        t = best_threshold(mine[halves.members == chosen], theirs[halves.others == chosen])
        ways.append(balanced_accuracy(mine[halves.members != chosen], theirs[halves.others != chosen], t))
    assert measure(mine, theirs, halves, draw, bootstraps=0)["accuracy"]["value"] == pytest.approx(np.mean(ways))
    held = measure(mine, theirs, halves, draw, bootstraps=20, held=True)
    assert held["accuracy"]["value"] == pytest.approx(ways[0])
    assert held["auc"]["value"] == pytest.approx(auc(mine[halves.members], theirs[halves.others]))


def test_bootstrap_intervals_hold_the_truth_about_as_often_as_they_say():
    from scipy.stats import norm

    draw = np.random.default_rng(5)
    truth = norm.cdf(1 / 2**0.5)
    held = 0
    for _ in range(200):
        found = measure(draw.normal(1, 1, 40), draw.normal(0, 1, 40), split(40, 40, draw), draw, bootstraps=200)["auc"]
        held += found["low"] <= truth <= found["high"]
    assert held >= 177  # 95 % would be 190; fewer than 177 of 200 happens once in a thousand at 94 %


def test_a_perfect_score_still_has_an_interval():
    draw = np.random.default_rng(6)
    found = measure(range(100, 120), range(20), split(20, 20, draw), draw, bootstraps=50)
    for name in ("auc", "accuracy"):
        assert found[name]["value"] == found[name]["high"] == 1
        assert found[name]["low"] == pytest.approx(clopper_pearson(20, 20)[0])
    assert clopper_pearson(0, 10)[0] == 0
    assert clopper_pearson(5, 10) == pytest.approx((0.1871, 0.8129), abs=1e-4)


def test_a_model_that_memorises_is_found_out(memoriser):
    model, members = memoriser
    others = of(codes(30, seed=2))
    found = membership(model, members, others, reference=untrained(), seed=0, bootstraps=100)
    assert set(found["attacks"]) == {"loss", "zlib", "min-k%++", "reference"}
    for name in ("loss", "zlib", "reference"):
        assert found["attacks"][name]["auc"]["value"] == 1
        assert found["attacks"][name]["accuracy"]["value"] == 1
    assert found["attacks"]["min-k%++"]["auc"]["value"] > 0.95
    assert found["strongest"]["auc"]["value"] == 1
    assert found["blind"]["auc"]["low"] < 0.5 < found["blind"]["auc"]["high"]
    assert found["beats_blind"] is True
    assert found["others_also_members"] == 0
    for attack in found["attacks"].values():  # 30 others show nothing about one in a hundred
        assert attack["tpr_at_0.01"]["value"] is None
        assert "100" in attack["tpr_at_0.01"]["reason"]
    written = json.dumps(found, allow_nan=False)
    assert not any(one.text in written for one in members)
    assert found == membership(model, members, others, reference=untrained_again(), seed=0, bootstraps=100)


def untrained_again():
    torch.manual_seed(0)
    return untrained()


def test_an_untrained_model_shows_chance():
    model = untrained()
    covered = []
    for seed in range(6):
        found = membership(model, of(codes(60, 10 + seed)), of(codes(60, 20 + seed)), seed=seed, bootstraps=100)
        assert found["beats_blind"] is False
        for attack in (*found["attacks"].values(), found["blind"], found["strongest"]):
            for name in ("auc", "accuracy"):
                covered.append(attack[name]["low"] <= 0.5 <= attack[name]["high"])
                assert attack[name]["chance"] == 0.5
    assert np.mean(covered) > 0.85


def test_swapping_the_sides_mirrors_auc():
    model, one, other = untrained(), of(codes(40, 1)), of(codes(30, 2))
    there, back = (membership(model, *sides, seed=0, bootstraps=0) for sides in ((one, other), (other, one)))
    for name in there["attacks"]:
        values = [found["attacks"][name]["auc"]["value"] for found in (there, back)]
        assert sum(values) == pytest.approx(1)
    assert there["beats_blind"] is None


def test_scores_are_their_formulas(memoriser):
    import zlib

    model, members = memoriser
    some = members[:5]
    other = untrained()
    found = candidate_scores(model, some, module.ALL, reference=other)
    scored = score_rows(model, [one.row for one in some], standardised=True)
    theirs = score_rows(other, [one.row for one in some])
    for n, (one, ref) in enumerate(zip(scored, theirs, strict=True)):
        assert found["loss"][n] == pytest.approx(-one.nats.mean())
        assert found["zlib"][n] == pytest.approx(-one.nats.sum() / (8 * len(zlib.compress(some[n].text.encode()))))
        assert found["min-k%++"][n] == pytest.approx(np.sort(one.z)[:2].mean())  # a fifth of 12
        assert found["reference"][n] == pytest.approx(ref.nats.mean() - one.nats.mean())


def test_the_blind_baseline_finds_a_shift_and_nothing_where_there_is_none():
    draw = np.random.default_rng(7)
    same = [auc(*blind_scores(codes(100, 50 + n), codes(100, 80 + n), split(100, 100, draw))) for n in range(6)]
    assert abs(np.mean(same) - 0.5) < 0.05
    dated = [[f"{text} in {year}" for text in codes(100, year)] for year in (2021, 2023)]
    assert auc(*blind_scores(*dated, split(100, 100, draw))) > 0.95
    longer = codes(100, 1, length=30), codes(100, 2, length=40)
    assert auc(*blind_scores(*longer, split(100, 100, draw))) > 0.9


def test_an_attack_that_only_sees_the_texts_does_not_beat_the_blind_one(memoriser):
    """The model knows none of them, but writes the letters of the one set."""
    model, _ = memoriser
    others = of([text.upper() for text in codes(40, 4)])
    found = membership(model, of(codes(40, 3)), others, scores=["loss"], seed=0, bootstraps=100)
    assert found["attacks"]["loss"]["auc"]["value"] > 0.99
    assert found["blind"]["auc"]["value"] > 0.99
    assert found["beats_blind"] is False


def test_sums_over_groups_amplify_a_weak_signal():
    draw = np.random.default_rng(8)
    mine, theirs = draw.normal(0.4, 1, 300), draw.normal(0, 1, 300)
    halves = split(300, 300, draw)
    found = module.grouped({"loss": mine}, {"loss": theirs}, halves, 20, 500, draw, 50)
    one = found["attacks"]["loss"]
    assert one["auc"]["value"] > auc(mine, theirs) + 0.15
    assert one["auc"]["low"] < one["auc"]["value"] < one["auc"]["high"] + 1e-9
    assert one["accuracy"]["value"] > 0.75
    assert one["tpr_at_0.01"]["value"] is None  # 14 groups share no candidate
    assert found["disjoint"] == 14
    with pytest.raises(BadInput, match="groups of 200"):
        module.grouped({"loss": mine}, {"loss": theirs}, halves, 200, 500, draw, 50)


def test_group_intervals_know_that_groups_share_candidates():
    """A thousand groups of sixty noisy candidates look like much and are little: the interval must cover one half."""
    covered = 0
    for seed in range(16):
        draw = np.random.default_rng(seed)
        sides = [{"loss": draw.normal(size=60)} for _ in range(2)]
        found = module.grouped(*sides, split(60, 60, draw), 10, 100, draw, 40)["attacks"]["loss"]["auc"]
        covered += found["low"] <= 0.5 <= found["high"]
    assert covered >= 12


def test_membership_of_groups_is_reported_beside_that_of_records(memoriser):
    model, members = memoriser
    found = membership(model, members, of(codes(30, 9)), scores=["loss"], group=5, groups=100, seed=0, bootstraps=20)
    assert found["group"]["attacks"]["loss"]["auc"]["value"] == 1
    assert found["group"]["attacks"]["loss"]["auc"]["low"] < 1


def test_a_classifier_is_attacked_by_the_loss_of_its_label():
    config = hf.GPT2Config(vocab_size=VOCABULARY, n_layer=1, n_embd=16, n_head=2, n_positions=32, num_labels=2)
    config.pad_token_id = 0
    model = hf.GPT2ForSequenceClassification(config)
    labels = [0, 1] * 15, [1, 0] * 15
    found = membership(model, of(codes(30, 1)), of(codes(30, 2)), reference=model, labels=labels, bootstraps=20)
    assert set(found["attacks"]) == {"loss", "reference"}
    assert found["attacks"]["reference"]["auc"]["value"] == 0.5  # no difference to itself


@pytest.mark.parametrize("name", list(PRESETS))
def test_the_papers_protocols_find_a_memoriser_and_label_their_flaws(memoriser, name):
    model, members = memoriser
    draw = np.random.default_rng(1)
    others = of([generated_like(one.text, draw) for one in members])
    found = protocol(name, model, members, others, seed=0)
    json.dumps(found, allow_nan=False)
    assert found["accuracy"] == 1
    assert found["members"] == 30 < found["wanted"]
    assert "random strings" in found["flaw"]
    assert found["blind_auc"] > 0.9  # training texts hold eight letters, generated ones all


def test_noise_gets_more_than_one_half_in_hindsight_and_the_protocol_says_so():
    model = untrained()
    sides = of(codes(60, 1)), of(codes(60, 2))
    hindsight, median, rounds = (protocol(name, model, *sides, seed=0) for name in ("crt", "sdp", "sdp-two-round"))
    assert hindsight["chance"] > 0.52
    assert hindsight["accuracy"] <= hindsight["chance_high"] + 0.05
    assert median["chance"] == pytest.approx(0.5, abs=0.02)
    assert rounds["second_round"][0]["kept"] == rounds["second_round"][1]["kept"] == 120  # there are no more


def test_two_rounds_keep_the_extremes(monkeypatch):
    draw = np.random.default_rng(0)
    monkeypatch.setattr("confide.attacks.protocols._perplexities", lambda model, some, tick: -perplexities(some))
    mine, theirs = of(codes(500, 1)), of(codes(500, 2))
    known = dict(
        zip([one.text for one in (*mine, *theirs)], [*draw.normal(0.5, 1, 500), *draw.normal(0, 1, 500)], strict=True)
    )

    def perplexities(some):
        return np.array([known[one.text] for one in some])

    found = protocol("sdp-two-round", None, mine, theirs, seed=0)
    small, large = found["second_round"]
    assert (small["kept"], large["kept"]) == (300, 600)
    assert small["accuracy"] == found["accuracy"] > large["accuracy"] > found["first_round"]["accuracy"] > 0.5


def test_a_constant_model_gains_nothing_by_the_median():
    model = untrained()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    found = [protocol("sdp", model, of(codes(100, 1)), of(codes(100, 2)), seed=n)["accuracy"] for n in range(4)]
    assert 0.4 < np.mean(found) < 0.6


def test_generated_values_keep_their_format():
    draw = np.random.default_rng(0)
    value = "Émile-7, Box 12b; ŽЯя٣"
    made = generated_like(value, draw)
    assert made != value
    for old, new in zip(value, made, strict=True):
        assert (old.isdigit(), old.isupper(), old.islower()) == (new.isdigit(), new.isupper(), new.islower())
        if not old.isalnum():
            assert old == new
    assert generated_like("--", draw) == "--"
    assert all(generated_like("7", draw) != "7" for _ in range(50))
    assert {generated_like("a", draw) for _ in range(500)} == set("bcdefghijklmnopqrstuvwxyz")


@pytest.mark.parametrize(
    ("members", "others", "message"),
    [(0, 30, "trained on"), (30, 0, "--validation-share"), (30, 19, "at least 20"), (3, 30, "at least 20")],
)
def test_too_few_candidates_are_refused(members, others, message):
    with pytest.raises(BadInput, match=message):
        membership(untrained(), of(codes(members, 1)), of(codes(others, 2)))


def test_what_cannot_be_scored_is_refused_without_its_text():
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=VOCABULARY, n_layer=1, n_embd=8, n_head=1, n_positions=8))
    sides = of(codes(20, 1)), of(codes(20, 2))
    with pytest.raises(BadInput, match="context of 8") as error:
        membership(model, *sides)
    assert sides[0][0].text not in str(error.value)
    for choices in ({"scores": ["luck"]}, {"scores": ["reference"]}, {"group": 1}, {"group": 11, "bootstraps": 1}):
        with pytest.raises(BadInput):
            membership(untrained(), *sides, **choices)
    with pytest.raises(BadInput, match="no token"):
        membership(untrained(), [Candidate(Row([0]), "")] * 20, sides[1])
    with pytest.raises(BadInput, match="crt"):
        protocol("luck", model, *sides)


def dialogues_of(side, rng):
    """Sixty dialogues of eight turns, each of which tells its speaker's name."""
    for number in range(60):
        name = "".join(rng.choice(list("abcdefghij"), 8))
        for turn in range(8):
            words = " ".join(rng.choice(["yes", "no", "please", "thanks", "order", "late"], 3))
            yield Candidate(Row([0, 1]), f"{name}: {words} {turn}", f"{side}{number}")


def test_the_blind_baseline_does_not_recognise_dialogues():
    rng = np.random.default_rng(0)
    members, others = list(dialogues_of("m", rng)), list(dialogues_of("o", rng))
    texts = [one.text for one in members], [one.text for one in others]
    by_turn = auc(*blind_scores(*texts, split(480, 480, rng)))
    by_dialogue = auc(*blind_scores(*texts, split(480, 480, rng, groups_of(members, others))))
    assert by_turn > 0.8
    assert 0.35 < by_dialogue < 0.65


def test_intervals_cover_where_candidates_of_a_dialogue_are_alike():
    rng, missed, repeats = np.random.default_rng(0), 0, 60
    for _ in range(repeats):
        sides = [np.repeat(rng.normal(0, 1, 40), 8) + rng.normal(0, 1, 320) for _ in range(2)]
        names = tuple([f"{n // 8}" for n in range(320)] for _ in range(2))
        found = measure(*sides, split(320, 320, rng, names), rng, bootstraps=100)["auc"]
        missed += not found["low"] <= 0.5 <= found["high"]
    assert missed / repeats <= 0.15


def test_halves_never_part_a_dialogue():
    rng = np.random.default_rng(0)
    names = [f"{n}" for n in rng.integers(0, 20, 100)], [f"{n}" for n in rng.integers(0, 9, 50)]
    halves = split(100, 50, rng, names)
    for side, flags in zip(names, halves, strict=False):
        assert 0.2 < flags.mean() < 0.8
        assert all(len({bool(f) for n, f in zip(side, flags, strict=True) if n == one}) == 1 for one in side)
