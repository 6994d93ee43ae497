"""An audit rejects what is false and almost never what is true, whatever the scores are made of."""

import inspect
import json
import math
import random

import numpy as np
import pytest
import torch
import transformers as hf

from confide.accounting import Setting, one_run_reach
from confide.attacks.audit import (
    against,
    against_claim,
    default_guesses,
    enough_guesses,
    one_run,
    pooled,
    promised,
)
from confide.attacks.scoring import canary_scores
from confide.attacks.spaces import Space, rows, tokenise
from confide.errors import BadInput
from confide.models.tokens import encode, train_bpe

FORMAT = "My ID is: {digits:6}."


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def certificate(epsilon, delta=1e-5, *, k=1, method="dpsgd", guarantees=None, **setting):
    """As much of a certificate as an audit reads."""
    groups = [{"name": "group", "k": k, "epsilon": epsilon, "delta": delta}]
    return {
        "method": method,
        "setting": {**Setting(method, "document", "p", "everything", 100, 1.0).to_plain(), **setting},
        "guarantees": groups if guarantees is None else guarantees,
    }


def randomised_response(rng, canaries, epsilon):
    """Tells each coin with probability e^ε/(1+e^ε): the worst that is ε-confidential. Ties are everywhere."""
    present = rng.random(canaries) < 0.5
    truth = rng.random(canaries) < 1 / (1 + math.exp(-epsilon))
    return (present == truth).astype(float), present


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("guesses", [None, 200])
def test_randomised_response_is_contradicted_at_most_five_percent_of_the_time(epsilon, guesses):
    rng = np.random.default_rng(3)
    promised = certificate(epsilon)
    wrong = sum(
        against(one_run(*randomised_response(rng, 200, epsilon), 1e-5, guesses=guesses, seed=n), promised)[
            "contradicts"
        ]
        for n in range(200)
    )
    assert wrong <= 19  # 5 % of 200, and three standard deviations


def test_pooled_randomised_response_is_contradicted_at_most_five_percent_of_the_time():
    rng = np.random.default_rng(4)
    promised = certificate(1.0)
    wrong = 0
    for n in range(200):
        runs = [randomised_response(rng, size, 1.0) for size in (40, 100, 61)]
        wrong += against(pooled(runs, 1e-5, seed=n), promised)["contradicts"]
    assert wrong <= 19


def test_a_certificate_that_claims_less_than_half_is_contradicted():
    rng = np.random.default_rng(5)
    promised = certificate(0.9)
    caught = [
        against(one_run(*randomised_response(rng, 1000, 2.0), 1e-5, seed=n), promised)["contradicts"] for n in range(50)
    ]
    assert sum(caught) >= 48


def test_a_leak_with_delta_is_rejected_at_most_five_percent_of_the_time():
    """With probability δ a coin is simply told: the other corner of (ε, δ)."""
    rng = np.random.default_rng(6)
    epsilon, delta, wrong = 1.0, 0.01, 0
    for n in range(200):
        scores, present = randomised_response(rng, 100, epsilon)
        told = rng.random(100) < delta
        found = one_run(np.where(told, np.where(present, 9.0, -9.0), scores), present, delta, seed=n)
        wrong += found["lower_bound"] > epsilon
    assert wrong <= 19


def test_a_perfect_guesser_shows_the_reach():
    present = np.arange(200) % 2 == 0
    found = one_run(np.where(present, 1.0, -1.0), present, 1e-5)
    assert found["right"] == found["guesses"] == default_guesses(200)
    assert found["lower_bound"] == found["reach"] == one_run_reach(200, 1e-5, guesses=found["guesses"])
    assert found["reach"] <= found["reach_of_any"] == one_run_reach(200, 1e-5)
    assert found["auc"] == found["accuracy"] == 1.0
    mirrored = one_run(np.where(present, -1.0, 1.0), present, 1e-5)
    assert mirrored["right"] == mirrored["lower_bound"] == mirrored["auc"] == 0.0


@pytest.mark.parametrize(("guesses", "right", "epsilon"), [(1000, 700, 0.73), (100, 95, 2.11), (100, 100, 3.26)])
def test_golden_values(guesses, right, epsilon):
    """guarantees §8, at δ=8e-5 and 1,000 canaries: from scores on which so many guesses are right."""
    present = np.arange(1000) % 2 == 0
    scores = np.where(present, 1.0, -1.0) * (1 + np.arange(1000))
    lies = np.concatenate([np.flatnonzero(present)[::-1][: (guesses - right) // 2]])
    twins = lies + 1  # a masked one of about the same score: both guesses become wrong
    odd = (guesses - right) % 2
    coins = present.copy()
    coins[lies], coins[twins] = False, True
    if odd:
        coins[np.flatnonzero(present)[::-1][len(lies)]] = False
    found = one_run(scores, coins, 8e-5, guesses=guesses)
    assert found["right"] == right
    assert found["lower_bound"] == pytest.approx(epsilon, abs=0.006)


def test_a_constant_score_shows_nothing():
    rng = np.random.default_rng(7)
    bounds = [one_run(np.zeros(200), rng.random(200) < 0.5, 1e-5, seed=n)["lower_bound"] for n in range(100)]
    assert np.mean(bounds) < 0.05
    assert sum(bound > 0 for bound in bounds) <= 12


def test_ties_are_broken_at_random_and_not_by_place():
    present = np.arange(200) < 100  # a stable order would guess all of them wrong, or right
    right = [one_run(np.zeros(200), present, 1e-5, guesses=100, seed=n)["right"] for n in range(60)]
    assert 45 < np.mean(right) < 55
    assert len(set(right)) > 5
    assert one_run(np.zeros(200), present, 1e-5, seed=1) == one_run(np.zeros(200), present, 1e-5, seed=1)


def test_the_number_of_guesses_is_fixed_by_the_number_of_canaries_alone():
    rng = np.random.default_rng(8)
    for canaries in (10, 11, 57, 200):
        made = {
            one_run(rng.normal(size=canaries), np.arange(canaries) % 2 == 0, delta, beta=beta)["guesses"]
            for delta, beta in ((0.0, 0.05), (1e-3, 0.1))
        }
        assert made == {default_guesses(canaries)}
    assert all(2 <= default_guesses(m) <= m and default_guesses(m) % 2 == 0 for m in range(10, 3000))


def test_enough_guesses_can_contradict_what_they_are_made_for():
    assert enough_guesses(200, 1e-5, 1.0) == default_guesses(200)
    more = enough_guesses(200, 1e-5, 3.2)
    assert default_guesses(200) < more <= 200 - 3 * math.sqrt(200)
    assert one_run_reach(200, 1e-5, guesses=more) >= 3.7
    most = enough_guesses(200, 1e-5, 50.0)
    assert more < most <= 200 - 3 * math.sqrt(200)
    rng = np.random.default_rng(1)
    coins = [
        rng.random(200) < 0.5 for _ in range(100)
    ]  # a perfect guesser is rarely held up by coins that fell unequally
    assert sum(one_run(np.where(fell, 1.0, -1.0), fell, 1e-5, guesses=most)["right"] == most for fell in coins) > 95


def test_pooled_runs_are_ranked_among_themselves():
    """A model whose scores are all higher does not take the guesses of "present" for itself."""
    present = np.arange(100) % 2 == 0
    perfect = np.where(present, 1.0, -1.0)
    found = pooled([(perfect, present), (1e6 + perfect, present)], 1e-5)
    assert found["runs"] == 2
    assert found["canaries"] == 200
    assert found["right"] == found["guesses"] == default_guesses(200)
    assert found["auc"] == 1.0
    both = pooled([(perfect, present)] * 3, 1e-5, guesses=299)
    assert both["right"] == both["guesses"] == 299


def test_results_are_plain():
    rng = np.random.default_rng(9)
    found = against(one_run(*randomised_response(rng, 50, 1.0), 1e-5), certificate(2.0))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    low, high = found["accuracy_interval"]
    assert low < found["accuracy"] < high


@pytest.mark.parametrize(
    ("scores", "present", "match"),
    [
        (np.zeros(9), [True, False] * 4 + [True], "plant at least 10"),
        (np.zeros(20), [True] * 20, "no fair coins"),
        (np.zeros(20), [False] * 20, "no fair coins"),
        (np.zeros(1000), [True] * 900 + [False] * 100, "no fair coins"),
        (np.zeros(20), None, "had no coins"),
        (np.zeros(20), [True, False] * 9, "one score and one coin"),
        (np.zeros((20, 1)), [True, False] * 10, "one score and one coin"),
        (np.array([math.nan] * 20), [True, False] * 10, "not a finite number"),
        (np.array([-math.inf] + [0.0] * 19), [True, False] * 10, "not a finite number"),
        (["high"] * 20, [True, False] * 10, "are numbers"),
        (np.zeros(20), [0, 2] * 10, "true or false"),
    ],
)
def test_what_is_no_audit_is_refused(scores, present, match):
    with pytest.raises(BadInput, match=match):
        one_run(scores, present, 1e-5)


@pytest.mark.parametrize("choice", [{"guesses": 0}, {"guesses": 21}, {"beta": 0.0}, {"beta": 0.9}])
def test_impossible_choices_are_refused(choice):
    with pytest.raises(BadInput):
        one_run(np.zeros(20), [True, False] * 10, 1e-5, **choice)
    with pytest.raises(BadInput):
        pooled([], 1e-5)


PERFECT = one_run(np.where(np.arange(1000) % 2 == 0, 1.0, -1.0), np.arange(1000) % 2 == 0, 1e-5)


def test_a_bound_above_the_certificate_contradicts_it():
    assert against(PERFECT, certificate(2.0))["contradicts"] is True
    agreeing = against(PERFECT, certificate(6.0))
    assert agreeing["contradicts"] is False
    assert agreeing["certified"] == 6.0
    assert "could not have done otherwise" in agreeing["says"]
    assert against(PERFECT, certificate(2.0))["p_value_of_certificate"] < 0.05


def test_an_audit_below_the_certificates_delta_is_refused():
    with pytest.raises(BadInput, match=r"audit at delta 0\.001"):
        against(PERFECT, certificate(2.0, 1e-3))
    assert against(PERFECT, certificate(2.0, 1e-6))["contradicts"]


@pytest.mark.parametrize(
    ("promised", "choice", "why"),
    [
        (None, {}, "no certificate"),
        (certificate(1.0, method="sdp"), {}, "equal mask pattern"),
        (certificate(1.0, method="jft", jft_phase1="direct"), {}, "phase 1 trains without noise"),
        (
            certificate(1.0, method="jft", jft_phase1="hand-screened"),
            {"policy": "as-is"},
            "phase 1 trains without noise",
        ),
        (certificate(1.0, method="crt", conservative="rules"), {"policy": "as-is"}, "both policies miss"),
        (certificate(None), {}, "no finite epsilon for one changed record"),
        (certificate(1.0), {"copies": 20}, "no finite epsilon for 20 changed records"),
    ],
)
def test_where_nothing_is_promised_nothing_is_contradicted(promised, choice, why):
    found = against(PERFECT, promised, **choice)
    assert found["certified"] is None
    assert found["contradicts"] is False
    assert why in found["says"]


def test_the_promise_is_the_one_for_as_many_records_as_a_coin_changes():
    groups = [{"name": "group", "k": k, "epsilon": float(k), "delta": 1e-5} for k in range(1, 11)]
    assert against(PERFECT, certificate(0, guarantees=groups), copies=7)["certified"] == 7.0
    several = certificate(0, guarantees=groups, dedup="exact", units_per_record="several")
    assert against(PERFECT, several)["certified"] == 3.0
    thinned = certificate(0, guarantees=groups, dedup="exact")
    assert against(PERFECT, thinned, copies=7)["certified"] == 1.0
    assert against(PERFECT, certificate(1.0, method="jft", jft_phase1="noised"))["certified"] == 1.0
    assert against(PERFECT, certificate(1.0, method="jft", jft_phase1="direct"), policy="found")["certified"] == 1.0
    detected = [{"name": "detected-secret", "k": 0, "epsilon": 0.0, "delta": 0.0}, *groups]
    caught = against(PERFECT, certificate(0, method="crt", guarantees=detected), policy="found")
    assert caught["certified"] == 0.0
    assert caught["contradicts"]


def test_a_claim_is_held_like_a_certificate():
    assert against_claim(PERFECT, (2.0, 1e-5))["contradicts"]
    assert not against_claim(PERFECT, (6.0, 1e-6))["contradicts"]
    for claim, copies in ((None, 1), ((2.0, 1e-5), 3)):
        found = against_claim(PERFECT, claim, copies=copies)
        assert (found["certified"], found["contradicts"]) == (None, False)
    with pytest.raises(BadInput, match="audit at delta"):
        against_claim(PERFECT, (2.0, 1e-3))
    for claim in ((-1.0, 1e-5), (1.0, 2.0), (math.nan, 1e-5)):
        with pytest.raises(BadInput, match="claimed"):
            against_claim(PERFECT, claim)


def test_a_true_claim_for_an_added_record_is_not_contradicted():
    """±1 with Laplace noise of scale 1/ε is ε-private for an added or removed record, and 2ε for a substituted one."""
    rng, epsilon, wrong = np.random.default_rng(0), 1.0, 0
    for n in range(40):
        present = rng.random(1000) < 0.5
        found = one_run(np.where(present, 1.0, -1.0) + rng.laplace(0, 1 / epsilon, 1000), present, 1e-5, seed=n)
        wrong += against_claim(found, (epsilon, 1e-6), adjacency="add-remove")["contradicts"]
        assert against_claim(found, (epsilon, 1e-6))["contradicts"]
    assert wrong <= 6


def test_what_is_promised_is_infinite_where_nothing_is():
    assert promised(certificate(2.0)) == 2.0
    assert (
        promised(certificate(2.0), copies=2) == promised(None) == promised(certificate(1.0, method="sdp")) == math.inf
    )


# --- the scores of canaries


@pytest.fixture(scope="module")
def tokenizer():
    texts = [f"My ID is: {n:06d}. The parcel 12 34 56 is late." for n in range(0, 1000, 7)]
    return train_bpe(iter(texts), 300, "nothing")


def tiny(tokenizer):
    torch.manual_seed(1)
    shape = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 32}
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, **shape))


def test_the_coins_are_no_argument_of_the_scores():
    names = set(inspect.signature(canary_scores).parameters)
    assert names == {"model", "tokenizer", "format", "secrets", "reference", "others", "seed", "tick"}


@pytest.mark.parametrize("form", [FORMAT, "{digits:6}", "ID {digits:6} was given", "1{digits:6}1", "1{digits:1}1"])
def test_the_tokens_that_count_hold_the_secret_and_little_else(tokenizer, form):
    digits = 1 if "digits:1" in form else 6
    for secret in ("111111"[:digits], "341752"[:digits]):
        space = Space.of(form)
        row = rows(tokenise(tokenizer, space, space.signs([secret, "9" * digits])))[0]
        text = form.replace(f"{{digits:{digits}}}", secret)
        assert list(row.ids[1:]) == encode(tokenizer, text)[: len(row.ids) - 1]
        chosen = np.flatnonzero(row.target)
        assert len(chosen)
        assert (np.diff(chosen) == 1).all()
        assert not row.target[0]
        held = tokenizer.decode([row.ids[n] for n in chosen])
        before, after = form.split("{")[0], form.split("}")[1]
        assert secret[1:] in held
        assert len(held) <= len(before[-2:]) + digits + len(after[:4])


def memorise(model, tokenizer, texts):
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    rows = [torch.tensor([0, *encode(tokenizer, text)]) for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)
    labels = ids.masked_fill(ids == 1, -100)
    for _ in range(110):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def test_a_model_that_memorises_its_canaries_is_caught_and_an_untrained_one_is_not(tokenizer):
    coins = random.Random(2)
    secrets = [f"{n:06d}" for n in coins.sample(range(10**6), 60)]
    present = [coins.random() < 0.5 for _ in secrets]
    model = tiny(tokenizer)
    fresh = one_run(canary_scores(model, tokenizer, FORMAT, secrets, seed=0), present, 1e-5, seed=0)
    assert fresh["lower_bound"] < 0.5
    assert 0.25 < fresh["auc"] < 0.75
    texts = [FORMAT.replace("{digits:6}", s if there else "<MASK>") for s, there in zip(secrets, present, strict=True)]
    memorise(model, tokenizer, texts)
    done = []
    found = one_run(canary_scores(model, tokenizer, FORMAT, secrets, seed=0, tick=done.append), present, 1e-5, seed=0)
    assert sum(done) == 60 + 256
    assert found["auc"] > 0.95
    assert found["lower_bound"] > 1.0
    assert against(found, certificate(0.5))["contradicts"]
    against_reference = canary_scores(model, tokenizer, FORMAT, secrets, reference=tiny(tokenizer), seed=0)
    assert one_run(against_reference, present, 1e-5, seed=0)["auc"] > 0.95


class Habits(torch.nn.Module):
    """Likes some digits better than others, whatever came before: difficulty without memory."""

    def __init__(self, tokenizer):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.logits = torch.nn.Parameter(3 * torch.randn(len(tokenizer), generator=generator))

    def forward(self, input_ids, **_):
        return hf.modeling_outputs.CausalLMOutput(logits=self.logits.expand(*input_ids.shape, -1))


def test_calibration_takes_out_habits(tokenizer):
    plain_digits = train_bpe(iter(["My ID is: x"]), 259, "nothing")  # one token a sign
    secrets = [f"{n:06d}" for n in random.Random(3).sample(range(10**6), 100)]
    raw = canary_scores(Habits(plain_digits), plain_digits, FORMAT, secrets, others=0)
    fair = canary_scores(Habits(plain_digits), plain_digits, FORMAT, secrets, seed=0)
    assert raw.std() > 1
    assert fair.std() < 0.05 * raw.std()
    same = canary_scores(Habits(plain_digits), plain_digits, FORMAT, secrets, reference=Habits(plain_digits))
    assert np.abs(same).max() < 1e-6


@pytest.mark.parametrize(
    ("form", "secrets"), [("no slot", ["123456"]), (FORMAT, []), (FORMAT, ["12345"]), (FORMAT, ["12345x"])]
)
def test_canaries_that_do_not_fit_are_refused_without_being_shown(tokenizer, form, secrets):
    with pytest.raises(BadInput) as error:
        canary_scores(tiny(tokenizer), tokenizer, form, secrets)
    assert not any(secret in str(error.value) for secret in secrets)


def test_a_canary_longer_than_the_context_is_explained(tokenizer):
    with pytest.raises(BadInput, match="context"):
        canary_scores(tiny(tokenizer), tokenizer, "word " * 40 + FORMAT, ["123456"])
