"""Utility is what can be worked out by hand, whatever the tokenizer, the batch and the windows."""

import math
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel, PreTrainedTokenizerFast

from confide.errors import BadInput
from confide.models.lstm import LstmConfig, LstmForCausalLM
from confide.training.evaluation import evaluate, evaluate_classes, quick, secret_tokens

END = "<|endoftext|>"


class Held(NamedTuple):
    text: str
    spans: list[tuple[int, int]] | None = None


def bpe(merges=0, name=""):
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=257 + merges,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokens.train_from_iterator(["my name is Ann Lee and my number is 4711"] * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token=END, pad_token=END, name_or_path=name)


BYTES, WORDS = bpe(), bpe(40, name="/somewhere/words")
TEXTS = [
    Held("my name is Ann Lee", [(11, 18)]),
    Held("and my number is 4711, Ann", [(17, 21), (23, 26)]),
    Held("", []),
    Held("é😀 is Lee\n\n  my", []),
    Held("name " * 30, [(0, 4)]),
]


class Uniform(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, input_ids, attention_mask):
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, self.size))


class Bigram(nn.Module):
    """After each token the same one again with probability 1/2; all others share the rest."""

    def __init__(self, size):
        super().__init__()
        table = torch.full((size, size), math.log(0.5 / (size - 1)))
        self.register_buffer("table", table.fill_diagonal_(math.log(0.5)))

    def forward(self, input_ids, attention_mask):
        return self.table[input_ids]


def gpt2(size=300, **options):
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=size, initializer_range=0.5, **{**shape, **options}))


def lstm(size=300):
    torch.manual_seed(0)
    return LstmForCausalLM(LstmConfig(vocab_size=size, embedding_size=16, hidden_size=16, initializer_range=0.5))


def count(tokenizer, text):
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_a_uniform_model_over_v_tokens_has_perplexity_v():
    found = evaluate(Uniform(257), BYTES, TEXTS, max_length=8)
    size = sum(len(one.text.encode()) for one in TEXTS)
    assert found["tokens"] == found["reference_tokens"] == size
    for part in (found, found["secret"], found["non_secret"]):
        assert part["perplexity"] == pytest.approx(257)
        assert part["nats_per_token"] == pytest.approx(math.log(257))
    assert found["bits_per_character"] == pytest.approx(math.log2(257) * size / found["characters"])
    assert found["perplexity_tokens"] == "the model's own"


def test_a_model_of_known_probabilities_by_hand():
    """aab: a after bos (other), a after a (same), b after a (other)."""
    found = evaluate(Bigram(257), BYTES, [Held("aab", [(1, 2)])], max_length=8)
    other = -math.log(0.5 / 256)
    assert found["nats"] == pytest.approx(math.log(2) + 2 * other, rel=1e-6)
    assert found["secret"]["perplexity"] == pytest.approx(2)
    assert found["non_secret"]["perplexity"] == pytest.approx(512, rel=1e-5)
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert (found["secret"]["accuracy"], found["non_secret"]["accuracy"]) == (1.0, 0.0)


def test_perplexity_counts_the_tokens_of_the_reference():
    alone = evaluate(Uniform(257), BYTES, TEXTS, max_length=8)
    found = evaluate(Uniform(257), BYTES, TEXTS, max_length=8, reference=WORDS)
    size = sum(count(WORDS, one.text) for one in TEXTS)
    assert size < found["tokens"]
    assert found["reference_tokens"] == size
    assert found["nats"] == alone["nats"]
    assert found["perplexity"] == pytest.approx(math.exp(found["nats"] / size))
    assert found["bits_per_character"] == alone["bits_per_character"]
    assert found["perplexity_tokens"] == "words", "a folder's name, not its place"
    assert found["secret"]["reference_tokens"] + found["non_secret"]["reference_tokens"] == size


@pytest.mark.parametrize("make", [gpt2, lstm])
def test_secret_and_other_tokens_add_up(make):
    found = evaluate(make(), WORDS, TEXTS, max_length=8, reference=BYTES)
    parts = found["secret"], found["non_secret"]
    for name in ("tokens", "reference_tokens", "nats"):
        assert sum(part[name] for part in parts) == pytest.approx(found[name])
        assert all(part[name] > 0 for part in parts)


@pytest.mark.parametrize("make", [gpt2, lstm])
def test_batches_do_not_change_the_numbers(make):
    model = make()
    alone = evaluate(model, WORDS, TEXTS, max_length=8, batch=1)
    for batch in (2, 3, 100):
        found = evaluate(model, WORDS, TEXTS[::-1], max_length=8, batch=batch)
        for part in (lambda f: f, lambda f: f["secret"], lambda f: f["non_secret"]):
            assert part(found)["nats"] == pytest.approx(part(alone)["nats"], rel=1e-6)
            assert part(found)["accuracy"] == part(alone)["accuracy"]


def by_hand(model, ids):
    """Nats of tokens behind one bos, from the model's own logits."""
    inputs = torch.tensor([[BYTES.eos_token_id, *ids[:-1]]])
    logits = model.eval()(input_ids=inputs).logits[0].double().log_softmax(-1)
    return -float(sum(logits[at, goal] for at, goal in enumerate(ids)).detach())


def test_a_transformer_reads_a_long_text_in_windows_that_each_start_anew():
    model, text = gpt2(), "my name is Ann Lee"
    ids = BYTES(text)["input_ids"]
    assert len(ids) == 18
    wanted = by_hand(model, ids[:8]) + by_hand(model, ids[8:16]) + by_hand(model, ids[16:])
    assert evaluate(model, BYTES, [Held(text)], max_length=8)["nats"] == pytest.approx(wanted, rel=1e-6)


def test_an_lstm_reads_a_long_text_in_one_go():
    model, text = lstm(), "my name is Ann Lee"
    wanted = by_hand(model, BYTES(text)["input_ids"])
    assert evaluate(model, BYTES, [Held(text)], max_length=8)["nats"] == pytest.approx(wanted, rel=1e-6)


def test_the_head_by_itself_and_in_pieces_gives_the_same(monkeypatch):
    model = gpt2()
    whole = evaluate(model, WORDS, TEXTS, max_length=8)
    monkeypatch.setattr("confide.training.evaluation.AT_ONCE", 700)
    assert evaluate(model, WORDS, TEXTS, max_length=8)["nats"] == pytest.approx(whole["nats"], rel=1e-6)
    monkeypatch.setattr("confide.training.evaluation.can_fuse", lambda *_: False)
    assert evaluate(model, WORDS, TEXTS, max_length=8)["nats"] == pytest.approx(whole["nats"], rel=1e-6)


def test_the_model_is_left_as_it_was_and_dropout_is_off():
    model = gpt2(resid_pdrop=0.9)
    model.train()
    model.transformer.h[0].eval()
    before = [module.training for module in model.modules()]
    nats = {evaluate(model, WORDS, TEXTS, max_length=8)["nats"] for _ in range(3)}
    assert len(nats) == 1
    assert [module.training for module in model.modules()] == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_words_that_look_like_special_tokens_are_words():
    found = evaluate(Uniform(257), BYTES, [Held(END)], max_length=50)
    assert found["tokens"] == len(END)


@pytest.mark.parametrize(
    ("spans", "wanted"),
    [
        ([(5, 8)], [False, False, True, False]),
        ([(4, 5)], [False, False, False, False]),  # only the space before Ann
        ([(0, 1), (8, 9)], [True, False, False, True]),
        ([(3, 6)], [False, True, True, False]),
        ([(5, 8), (6, 7)], [False, False, True, False]),
        ([], [False] * 4),
    ],
)
def test_a_leading_space_overlaps_nothing(spans, wanted):
    offsets = [(0, 1), (1, 4), (4, 8), (8, 9)]
    assert secret_tokens("I am Ann.", offsets, spans).tolist() == wanted


def test_white_space_inside_a_secret_is_secret():
    assert (
        secret_tokens("a\nb c", [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], [(0, 3)]).tolist() == [True] * 3 + [False] * 2
    )


@given(st.text(max_size=30), st.data())
def test_every_token_that_holds_a_secret_character_is_secret(text, data):
    """Against the definition, character by character; with all characters secret, so is every token."""
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    secret = {place for start, end in spans for place in range(start, end)}
    encoded = WORDS(text, return_offsets_mapping=True, split_special_tokens=True)
    flags = secret_tokens(text, encoded["offset_mapping"], spans)
    for (start, end), flag in zip(encoded["offset_mapping"], flags, strict=True):
        own = [p for p in range(start, end) if text[start : p + 1].strip()] or list(range(start, end))
        assert flag == any(place in secret for place in own)
    assert secret_tokens(text, encoded["offset_mapping"], [(0, len(text))]).all()


def test_without_ground_truth_there_are_no_secret_numbers():
    found = evaluate(Uniform(257), BYTES, [Held("ab")], max_length=8)
    assert "secret" not in found
    found = evaluate(Uniform(257), BYTES, [Held("ab", [])], max_length=8)
    assert found["secret"]["perplexity"] is None
    assert found["non_secret"]["perplexity"] == pytest.approx(257)


def test_nothing_to_evaluate_is_explained():
    for held, words in (([], "no held-out text"), ([Held(""), Held("")], "no token")):
        with pytest.raises(BadInput, match=words):
            evaluate(Uniform(257), BYTES, held, max_length=8)
    with pytest.raises(BadInput, match="at least 1"):
        evaluate(Uniform(257), BYTES, TEXTS, max_length=0)


def test_a_model_with_too_few_tokens_is_explained_without_the_text():
    for model in (gpt2(size=100), Uniform(100)):
        with pytest.raises(BadInput, match="fit") as raised:
            evaluate(model, BYTES, [Held("Zoë Ypsilanti")], max_length=8)
        assert "Yps" not in str(raised.value)
    nameless = bpe()
    nameless.eos_token = None
    with pytest.raises(BadInput, match="no token for the beginning or the end of a text"):
        evaluate(Uniform(257), nameless, TEXTS, max_length=8)


def test_a_model_that_diverged_has_infinite_perplexity():
    model = gpt2()
    with torch.no_grad():
        model.transformer.wte.weight.fill_(math.nan)
    found = evaluate(model, WORDS, TEXTS, max_length=8)
    assert found["perplexity"] == found["nats"] == math.inf


class Rows:
    """Tokenised records, as the loop reads them."""

    def __init__(self, rows, pad=0, classes=None):
        self.rows, self.pad, self.classes = rows, pad, classes

    def batch(self, indices):
        mine = [self.rows[int(index)] for index in indices]
        width = max(map(len, mine))
        ids = torch.tensor([row + [self.pad] * (width - len(row)) for row in mine])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in mine])
        labels = ids.masked_fill(mask == 0, -100)
        if self.classes is not None:
            labels = torch.tensor([self.classes[int(index)] for index in indices])
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def test_quick_validation_by_hand():
    found = quick(Bigram(10), Rows([[0, 1, 1], [9, 9], [2, 3, 4, 5]]), [0, 1], batch=1)
    assert found["targets"] == 3
    assert found["loss"] == pytest.approx((2 * math.log(2) + math.log(18)) / 3, rel=1e-6)
    assert found["accuracy"] == pytest.approx(2 / 3)


def test_quick_validation_agrees_with_the_whole_one_but_for_the_end():
    model, end = gpt2(n_positions=64), BYTES.eos_token_id
    texts = [Held("my name is Ann"), Held("and Lee")]
    rows = Rows([[end, *BYTES(one.text)["input_ids"]] for one in texts], end)
    slow = evaluate(model, BYTES, texts, max_length=64)
    for batch in (1, 2):
        found = quick(model, rows, np.arange(2), batch=batch)
        assert found["loss"] == pytest.approx(slow["nats_per_token"], rel=1e-6)
        assert found["accuracy"] == slow["accuracy"]


def test_quick_validation_on_nothing_is_explained():
    with pytest.raises(BadInput, match="no record"):
        quick(Bigram(10), Rows([]), [])
    with pytest.raises(BadInput, match="target"):
        quick(Bigram(10), Rows([[1], [2]]), [0, 1])


def classifier():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=2, n_positions=8, num_labels=3, pad_token_id=256)
    return GPT2ForSequenceClassification(config).eval()


def test_a_classifier_by_hand_and_in_any_batch():
    model = classifier()
    model.config.pad_token_id = BYTES.pad_token_id
    texts, labels = ["ab", "hello", "my name is Ann"], [0, 2, 1]
    wanted = []
    for text, label in zip(texts, labels, strict=True):
        logits = model(torch.tensor([BYTES(text)["input_ids"][:8]])).logits[0]
        wanted.append((-float(logits.detach().log_softmax(-1)[label]), int(logits.argmax()) == label))
    for batch in (1, 3):
        found = evaluate_classes(model, BYTES, texts, labels, max_length=8, batch=batch)
        assert found["loss"] == pytest.approx(np.mean([one[0] for one in wanted]), rel=1e-5)
        assert found["accuracy"] == pytest.approx(np.mean([one[1] for one in wanted]))
    rows = Rows([BYTES(text)["input_ids"][:8] for text in texts], BYTES.pad_token_id, labels)
    assert quick(model, rows, [0, 1, 2])["loss"] == pytest.approx(found["loss"], rel=1e-5)
    with pytest.raises(BadInput, match="label each"):
        evaluate_classes(model, BYTES, texts, [0], max_length=8)
    with pytest.raises(BadInput, match="fit"):
        evaluate_classes(model, BYTES, texts, [0, 1, 3], max_length=8)
