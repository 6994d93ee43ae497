"""Extraction and the games: what a model that memorises gives away, and that one which does not gives nothing."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tokenizers import Tokenizer, models, pre_tokenizers

from confide.attacks import extraction, games
from confide.attacks.extraction import Search, extract
from confide.attacks.games import Masked, _fitting, _others, infer, reconstruct
from confide.attacks.letters import letters, read
from confide.attacks.sampling import Sample, sample
from confide.attacks.statistics import contrast, rate
from confide.errors import BadInput
from confide.models import LstmConfig, LstmForCausalLM
from confide.models.tokens import encode, first_id, train_bpe
from confide.policies import load

CITIES = ["Aalborg", "Bergen", "Cadiz", "Dresden", "Evora", "Fulda", "Ghent", "Halle"]


def number(coins):
    return f"{coins.integers(10**7):07d}"


@pytest.fixture(scope="module")
def world():
    """Eight records with a secret each, eight of the same kind that nobody saw, and other numbers."""
    coins = np.random.default_rng(1)
    values = [number(coins) for _ in range(200)]
    assert len(set(values)) == 200
    members, others = (
        [Masked(f"Dear {city}, your code is ", ". Bye.", "DIGITS", value) for city, value in zip(CITIES, part, strict=True)]
        for part in (values[:8], values[8:16])
    )  # fmt: skip
    return SimpleNamespace(members=members, others=others, pool=values[16:])


@pytest.fixture(scope="module")
def tokenizer():
    text = "Dear " + ", your code is. Bye. ".join(CITIES)
    return train_bpe([text] * 3, 290, "nothing")


def lstm(tokenizer, size=64):
    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    return LstmForCausalLM(LstmConfig(len(tokenizer), size, size, **ids))


def gpt(tokenizer, size=48, **shape):
    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    shape = {"n_layer": 2, "n_head": 2, "n_positions": 64, **shape}
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=len(tokenizer), n_embd=size, **shape, **ids, **drops))


def overfit(model, tokenizer, texts, steps, rate):
    end = tokenizer.eos_token_id
    rows = [[first_id(tokenizer), *encode(tokenizer, text), end] for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([row + [1] * (width - len(row)) for row in rows])
    kept = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(steps):
        loss = model(input_ids=ids, attention_mask=kept, labels=ids.masked_fill(kept == 0, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), float(loss.detach())


@pytest.fixture(scope="module", params=["lstm", "gpt"])
def parrot(request, tokenizer, world):
    """A model that knows its eight records by heart."""
    texts = [one.before + one.value + one.after for one in world.members]
    model = {"lstm": lstm, "gpt": gpt}[request.param](tokenizer)
    model, loss = overfit(model, tokenizer, texts, 400 if request.param == "lstm" else 150, 0.01)
    assert loss < 0.2
    return model


def values(examples):
    return {"DIGITS": [one.value for one in examples]}


def holds_none_of(result, secrets):
    text = json.dumps(result, allow_nan=False)
    return not any(one in text for one in secrets)


# -- a model that memorises is found out -------------------------------------------------------------------------------


def test_what_a_parrot_knows_is_extracted_and_what_it_never_saw_is_not(parrot, tokenizer, world):
    shown, done = [], []
    result = extract(
        parrot, tokenizer, values(world.members), values(world.others), prompts=["Dear"],
        samples=64, max_new_tokens=40, seed=0, found=lambda *one: shown.append(one), tick=done.append,
    )  # fmt: skip
    found = result["all"]
    for way in ("exact", "fuzzy"):
        assert found[way]["training"]["found"] >= 6
        assert found[way]["control"]["found"] == 0
        assert found[way]["p_value"] < 0.01
        assert found[way]["difference"] == found[way]["training"]["rate"]
        assert found[way]["interval"][0] > 0
    assert found["exact"]["times"]["training"] >= 24
    assert sum(done) == 64
    assert len(shown) == len(set(shown)) == found["fuzzy"]["training"]["found"]
    assert set(shown) <= {("DIGITS", one.value) for one in world.members}
    assert holds_none_of(result, [one.value for one in world.members + world.others])


def test_a_parrot_infers_its_own_secrets_and_guesses_others(parrot, tokenizer, world):
    done = []
    pool = {"DIGITS": world.pool}
    result = infer(parrot, tokenizer, world.members, pool, world.others, number=20, seed=0, tick=done.append)
    assert result["all"]["top_1"]["training"]["rate"] == 1
    assert result["all"]["reciprocal_rank"]["training"] == 1
    low, high = result["all"]["top_1"]["control"]["interval"]
    assert low <= result["chance"]["top_1"] <= high
    assert result["all"]["top_1"]["p_value"] < 0.01
    assert result["all"]["reciprocal_rank"]["p_value"] < 0.01
    assert sum(done) == 16
    assert holds_none_of(result, [one.value for one in world.members + world.others] + world.pool)


@pytest.mark.parametrize("policy", [None, "digits"])
def test_a_parrot_reconstructs_its_own_secrets_and_no_others(parrot, tokenizer, world, policy):
    done = []
    found = reconstruct(
        parrot, tokenizer, world.members, world.others, samples=8, max_new_tokens=12, policy=policy and load(policy),
        seed=0, tick=done.append,
    )  # fmt: skip
    assert found["all"]["top_1"]["training"]["rate"] == 1
    assert found["all"]["among"]["training"]["rate"] == 1
    assert found["all"]["among"]["control"]["found"] == 0
    assert found["types"]["DIGITS"]["mean_candidates"]["training"] >= 1
    assert sum(done) == 16
    assert holds_none_of(found, [one.value for one in world.members + world.others])


# -- and one that does not shows chance --------------------------------------------------------------------------------


def test_an_untrained_model_infers_at_chance(tokenizer):
    coins = np.random.default_rng(5)
    drawn = list(dict.fromkeys(number(coins) for _ in range(400)))
    examples = [Masked("Your code is ", ".", "DIGITS", one) for one in drawn]
    pool = {"DIGITS": drawn[200:]}
    result = infer(lstm(tokenizer, 16), tokenizer, examples[:100], pool, examples[100:200], number=5, seed=0)
    for side in ("training", "control"):
        low, high = result["all"]["top_1"][side]["interval"]
        assert low <= 0.2 <= high
        assert abs(result["all"]["reciprocal_rank"][side] - result["chance"]["reciprocal_rank"]) < 0.1
    assert result["all"]["top_1"]["p_value"] > 0.01


def test_a_constant_model_ranks_by_coins(tokenizer):
    model = lstm(tokenizer, 8)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    examples = [Masked("Your code is ", ".", "CODE", f"123456{i}") for i in range(7)]  # a token for each digit
    pool = {"CODE": [f"98765{i}" for i in range(10, 70)]}
    tops = [
        infer(model, tokenizer, examples[:6], pool, examples[6:], number=2, seed=seed)["all"]["top_1"]["training"]
        for seed in range(20)
    ]
    assert stats.binomtest(sum(one["found"] for one in tops), 120, 0.5).pvalue > 0.001


def test_an_untrained_model_writes_and_reconstructs_no_secret(tokenizer, world):
    model = gpt(tokenizer, 16, n_layer=1)
    result = extract(model, tokenizer, values(world.members), values(world.others), samples=32, seed=1)
    assert result["all"]["fuzzy"]["training"]["found"] == 0
    assert result["all"]["exact"]["p_value"] == 1
    found = reconstruct(model, tokenizer, world.members, world.others, samples=2, max_new_tokens=4, seed=1)
    assert found["all"]["among"]["training"]["found"] == 0


def test_the_same_seed_gives_the_same_and_leaves_the_callers_coins_alone(parrot, tokenizer, world):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    two = [
        extract(parrot, tokenizer, values(world.members), values(world.others), samples=8, max_new_tokens=30, seed=7)
        for _ in range(2)
    ]
    assert two[0] == two[1]
    assert torch.equal(before, torch.random.get_rng_state())


# -- matching ----------------------------------------------------------------------------------------------------------


def look(value, text, policy=None, **options):
    """None, "fuzzy" or "exact"."""
    found = Search([(letters(value), [value])]).find(text, policy=policy and load(policy), **options)
    return {None: None, False: "fuzzy", True: "exact"}[found.get(0)]


@pytest.mark.parametrize(
    ("value", "text", "expected"),
    [
        ("482913", "My ID is 482913.", "exact"),
        ("482913", "482913", "exact"),
        ("482913", "14829137", None),
        ("482913", "1482913", None),
        ("482913", "4829137", None),
        ("482913", "ID482913", None),
        ("482913", "482 913", "fuzzy"),
        ("482913", "48-29-13", "fuzzy"),
        ("482913", "482914", None),  # six digits forgive nothing
        ("482913", "no: 482913x, yes: 482913", "exact"),
        ("Ada Quist", "i am ADA QUIST!", "fuzzy"),
        ("Ada Quist", "I am Ada Quist!", "exact"),
        ("Ada Quist", "I am Ada Quists", "fuzzy"),  # one edit in eight
        ("Ada Quist", "I am Adam Quists", None),
        ("Ada Quist", "Canada Quist", None),
        ("(555) 123-4567", "call (555) 123-4567 now", "exact"),
        ("(555) 123-4567", "call 555.123.4567 now", "fuzzy"),
        ("(555) 123-4567", "call 555.123.4568 now", "fuzzy"),
        ("(555) 123-4567", "call 555.132.4568 now", None),
        ("Jörg Müller", "Jo\u0308rg Mu\u0308ller", "exact"),  # the same letters, composed and not
        ("Jörg Müller", "JÖRG MÜLLER", "fuzzy"),
        ("Großmann AG", "GROSSMANN AG", "fuzzy"),
        ("482913", "４８２９１３", "fuzzy"),
        ("山田太郎先生", "私は山田太郎先生です", "exact"),
        ("12 Long Street, Springfield, CA 90210", "at 12 Long Sreet, Sprngfield, CA 90211 today", "fuzzy"),
        ("12 Long Street, Springfield, CA 90210", "at 12 Short Street, Springfield, CA 9021", None),
    ],
)
def test_whole_values_match_exactly_or_roughly_or_not(value, text, expected):
    assert look(value, text) == expected


def test_with_a_policy_edits_are_forgiven_only_in_its_findings():
    assert look("12345678", "code 12345679", "digits") == "fuzzy"
    assert look("abcdefgh", "code abcdefgx", "digits") is None
    assert look("abcdefgh", "code ABCDEFGH", "digits") == "fuzzy"


@given(st.text("ab1 -", min_size=1, max_size=12), st.text("ab1 -", max_size=40))
def test_the_search_agrees_with_trying_every_pair_of_borders(value, text):
    from rapidfuzz.distance import Levenshtein

    key, seen = letters(value), read(text)
    if not key:
        return
    borders = [i for i, free in enumerate(seen.border) if free]
    away = [
        Levenshtein.distance(seen.letters[low:high], key) for low in borders for high in borders if low < high
    ]  # fmt: skip
    assert (look(value, text) is not None) == (min(away, default=99) <= min(3, len(key) // 8))


def test_what_the_prompt_tells_is_not_extracted(parrot, tokenizer, world):
    """Whether the model repeats it or goes on from its first digits."""
    first = world.members[0]
    other = values(world.members[1:])
    for prompt in (first.before + first.value + first.after, first.before + first.value[:3]):
        secrets = {"DIGITS": [first.value]}
        result = extract(parrot, tokenizer, secrets, other, prompts=[prompt], samples=8, max_new_tokens=10, seed=0)
        assert result["all"]["fuzzy"]["training"]["found"] == 0


def test_a_secret_that_the_model_copies_from_its_prompt_is_not_extracted(monkeypatch, tokenizer, world):
    copied = [Sample(f"{one.value} again: {one.value}", 7) for one in world.members[:2]]
    monkeypatch.setattr(extraction, "sample", lambda model, tokenizer, prompts, **_: copied)
    result = extract(
        gpt(tokenizer, 8), tokenizer, values(world.members), values(world.others), samples=2,
        prompts=[world.members[0].value, world.members[2].value],
    )  # fmt: skip
    assert result["all"]["exact"]["training"]["found"] == 1


def test_values_of_one_dialogue_count_once_in_the_p_value(monkeypatch, tokenizer, world):
    told = [Sample(" ".join(one.value for one in world.members[:4]), 0)]
    monkeypatch.setattr(extraction, "sample", lambda model, tokenizer, prompts, **_: told)
    sides, alone = (values(world.members), values(world.others)), None
    for owners in (None, {one.value: f"{number // 4}" for number, one in enumerate(world.members + world.others)}):
        found = extract(gpt(tokenizer, 8), tokenizer, *sides, samples=1, owners=owners)["all"]["exact"]
        assert found["training"]["found"] == 4
        alone = alone or found["p_value"]
    assert found["p_value"] > alone


def test_the_true_value_is_never_one_of_the_others_in_any_spelling():
    pool = [(letters(one), one) for one in ("11-11", "22-22", "33-33")]
    for seed in range(20):
        drawn = _others(pool, Masked("", "", "CODE", "1111"), 3, np.random.default_rng(seed))
        assert sorted(drawn) == ["22-22", "33-33"]
    assert len(_others(pool, Masked("", "", "CODE", "4444"), 3, np.random.default_rng(0))) == 2


def test_a_prompt_of_reconstruction_leaves_the_space_before_the_value_to_the_model(monkeypatch, tokenizer, world):
    seen = []

    def write(model, tokenizer, prompts, **_):
        seen.extend(prompts)
        return [Sample(prompt + " 7654321. x", len(prompt)) for prompt in prompts]

    monkeypatch.setattr(games, "sample", write)
    found = reconstruct(gpt(tokenizer, 8), tokenizer, world.members, world.others, samples=1, policy=load("digits"))
    assert not any(prompt.endswith(" ") for prompt in seen)
    assert found["all"]["mean_candidates"] == {"training": 1, "control": 1}


def test_values_of_both_sides_short_ones_and_spellings_are_counted_apart(tokenizer):
    secrets = {"NAME": ["Ada Quist", "ADA QUIST", "Bo", "Cleo Vance"], "CODE": ["77-777-77"]}
    control = {"NAME": ["Dan Otter"], "CODE": ["7777777", "8888888", "1234"]}
    model = gpt(tokenizer, 8, n_layer=1)
    result = extract(model, tokenizer, secrets, control, samples=1, max_new_tokens=2, seed=0)
    assert result["left_out"]["in_both"] == 1
    assert result["left_out"]["training"] == {"too_short": 1, "not_writable": 0}
    assert result["left_out"]["control"] == {"too_short": 1, "not_writable": 0}
    types = result["types"]
    assert types["NAME"]["secrets"] == {"training": 2, "control": 1}
    assert types["CODE"]["secrets"] == {"training": 0, "control": 1}
    assert types["CODE"]["exact"]["p_value"] is None
    assert result["all"]["secrets"] == {"training": 2, "control": 1}


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_rates_have_clopper_pearson_intervals():
    assert rate(0, 0)["rate"] is None
    for found, of in ((0, 10), (3, 10), (10, 10)):
        expected = stats.binomtest(found, of).proportion_ci(0.95, "exact")
        assert np.allclose(rate(found, of)["interval"], expected)


def test_the_contrast_is_fishers_and_covers_the_difference():
    assert contrast(3, 3, 0, 3)["p_value"] == pytest.approx(0.1)
    assert contrast(1, 2, 0, 0) == {"difference": None, "interval": None, "p_value": None}
    coins = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        low, high = contrast(coins.binomial(30, 0.3), 30, coins.binomial(40, 0.1), 40)["interval"]
        covered += low <= 0.2 <= high
    assert covered >= 190


# -- sampling and contexts ---------------------------------------------------------------------------------------------


def test_continuations_do_not_depend_on_the_prompts_beside_them(parrot, tokenizer, world):
    """Left padding changes nothing: with one token to choose from, text is what greedy reading gives."""
    prompts = ["", world.members[0].before.rstrip(), "Dear Gh"]
    options = {"max_new_tokens": 12, "temperature": 1.0, "top_k": 1, "top_p": None}
    together = sample(parrot, tokenizer, prompts, coins=np.random.default_rng(0), **options)
    alone = [sample(parrot, tokenizer, [one], coins=np.random.default_rng(0), **options)[0] for one in prompts]
    assert together == alone
    assert [one.text[: one.begin] for one in together] == prompts


def test_long_prompts_and_records_are_cut_to_the_context(tokenizer, world):
    model = gpt(tokenizer, 8, n_layer=1, n_positions=24)
    long = [
        one._replace(before="so and so " * 30 + one.before, after=one.after + " and on" * 30) for one in world.members
    ]
    before, after = _fitting(tokenizer, long[0], ["1234567"], 24)
    assert long[0].before.endswith(before)
    assert long[0].after.startswith(after)
    assert before
    assert after
    assert 22 <= len(encode(tokenizer, before + "1234567" + after)) <= 24
    pool = {"DIGITS": world.pool}
    assert infer(model, tokenizer, long, pool, world.others, number=3, seed=0)["all"]["top_1"]["training"]["of"] == 8
    reconstruct(model, tokenizer, long, world.others, samples=2, seed=0)
    extract(model, tokenizer, values(long), values(world.others), prompts=[long[0].before], samples=2, seed=0)
    with pytest.raises(BadInput, match="does not fit"):
        _fitting(tokenizer, Masked("", "", "CODE", "x"), ["1234567" * 10], 24)


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_empty_input_is_refused_in_clear_words(tokenizer, world):
    model = gpt(tokenizer, 8, n_layer=1)
    some, other = values(world.members), values(world.others)
    pool = {"DIGITS": world.pool}
    refused = [
        (lambda: extract(model, tokenizer, {}, other), "no training secret"),
        (lambda: extract(model, tokenizer, {"DIGITS": []}, other), "no training secret"),
        (lambda: extract(model, tokenizer, some, {}), "held-out"),
        (lambda: extract(model, tokenizer, {"DIGITS": ["123"]}, other), "fewer than 5"),
        (lambda: extract(model, tokenizer, some, some), "in both sets"),
        (lambda: extract(model, tokenizer, some, {"NAME": other["DIGITS"]}), "no type in common"),
        (lambda: extract(model, tokenizer, some, other, samples=0), "--samples"),
        (lambda: extract(model, tokenizer, some, other, temperature=0), "--temperature"),
        (lambda: infer(model, tokenizer, [], pool, world.others), "no training record"),
        (lambda: infer(model, tokenizer, world.members, pool, []), "no held-out record"),
        (lambda: infer(model, tokenizer, world.members, pool, world.others, number=1), "at least 2"),
        (lambda: infer(model, tokenizer, world.members, {}, world.others), "candidates"),
        (lambda: infer(model, tokenizer, world.members, pool, world.others, number=1000), "at most 184"),
        (lambda: infer(model, tokenizer, world.members, pool, world.members), "other side"),
        (lambda: reconstruct(model, tokenizer, [], world.others), "no training record"),
        (lambda: reconstruct(model, tokenizer, world.members, []), "no held-out record"),
        (lambda: reconstruct(model, tokenizer, world.members, world.others, samples=0), "--samples"),
    ]
    for call, words in refused:
        with pytest.raises(BadInput, match=words) as error:
            call()
        assert holds_none_of(str(error.value), [one.value for one in world.members + world.others])


def test_a_classifier_writes_nothing(tokenizer, world):
    config = hf.GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=1, pad_token_id=1)
    with pytest.raises(BadInput, match="classifier"):
        extract(hf.GPT2ForSequenceClassification(config), tokenizer, values(world.members), values(world.others))


def test_a_tokenizer_without_digits_is_explained(world):
    words = {word: n for n, word in enumerate(["<unk>", "<s>", "Dear", "your", "code", "is", ".", *CITIES])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="<s>", unk_token="<unk>"
    )
    model = gpt(tokenizer, 8, n_layer=1)
    with pytest.raises(BadInput, match="tokens for"):
        extract(model, tokenizer, values(world.members), values(world.others))
    with pytest.raises(BadInput, match="no tokens for"):
        infer(model, tokenizer, world.members, {"DIGITS": world.pool}, world.others)
    with pytest.raises(BadInput, match="no tokens for"):
        reconstruct(model, tokenizer, world.members, world.others)


def test_rare_types_without_candidates_are_left_out_of_inference(tokenizer, world):
    model = gpt(tokenizer, 8, n_layer=1)
    rare = Masked("I am ", ".", "NAME", "Ada Quist")
    pool = {"DIGITS": world.pool, "NAME": ["Bo Berg"]}
    result = infer(model, tokenizer, [*world.members, rare], pool, world.others, number=4, seed=0)
    assert result["left_out"] == {"in_both": 0, "not_writable": 0, "too_few_candidates": {"NAME": 1}}
    assert set(result["types"]) == {"DIGITS"}


def test_a_masked_record_does_not_show_itself(world):
    assert repr(world.members[0]) == "Masked(DIGITS)"
