"""Scores by way of the tree are the plain ones, for every kind of model and tokenizer, and pruning changes no rank."""

import math

import numpy as np
import pytest
import torch
import transformers

from confide.attacks import tree as trees
from confide.attacks.likelihood import Row, log_likelihoods
from confide.attacks.spaces import Space, Tokenised, tokenise
from confide.attacks.tree import build, score
from confide.errors import BadInput
from confide.models import build as build_model
from confide.models.tokens import train_bpe

FORMATS = ["My ID is: {digits:3}", "My ID is {digits:3}.", "{letters:2}-7 is hers"]


@pytest.fixture(scope="module")
def tokenizers():
    rng = np.random.default_rng(0)
    texts = [f"My ID is: {rng.integers(0, 10**6):06d}. It was {rng.integers(10, 99)}" for _ in range(200)]
    return {"bytes": train_bpe(texts, 259, ""), "joined": train_bpe(texts, 400, "")}


def make(kind, tokenizer, seed=0):
    size = len(tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        if kind == "gpt2":
            shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 48}
            config = transformers.GPT2Config(vocab_size=size, initializer_range=0.3, **shape, **ends)
            return transformers.GPT2LMHeadModel(config)
        if kind == "llama":
            config = transformers.LlamaConfig(
                vocab_size=size,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=300,
                initializer_range=0.3,
                **ends,
            )
            return transformers.LlamaForCausalLM(config)
        if kind == "bloom":
            config = transformers.BloomConfig(vocab_size=size, hidden_size=32, n_layer=1, n_head=2, **ends)
            return transformers.BloomForCausalLM(config)
        layers = kind.removeprefix("lstm")
        return build_model(f"lstm:hidden_size=16,embedding_size=16,num_hidden_layers={layers}", tokenizer, seed=seed)


def naive(model, tokens):
    """Whole texts, scored from the first token after the stem on."""
    stem = tokens.stem
    paths = [row[:size].tolist() for row, size in zip(tokens.paths, tokens.lengths, strict=True)]
    return log_likelihoods(model, [Row(stem + path, [False] * len(stem) + [True] * len(path)) for path in paths])


@pytest.mark.parametrize("written", FORMATS)
@pytest.mark.parametrize("words", ["bytes", "joined"])
@pytest.mark.parametrize(
    ("kind", "engine"), [("gpt2", "packed"), ("llama", "packed"), ("lstm1", "states"), ("lstm2", "states")]
)
def test_scores_that_share_beginnings_are_the_plain_scores(tokenizers, kind, engine, words, written):
    tokenizer, space = tokenizers[words], Space.of(written)
    model = make(kind, tokenizer)
    stem, paths, lengths = tokenise(tokenizer, space, space.all_signs())
    tree = build(stem, paths, lengths)
    found = score(model, tree)
    chosen = np.random.default_rng(1).choice(space.size, 300, replace=False)
    known = naive(model, Tokenised(stem, paths[chosen], lengths[chosen]))
    assert found.engine == engine
    assert found.nodes == tree.inner < space.size
    np.testing.assert_allclose(found.totals[chosen], known, atol=1e-5, rtol=0)


def test_large_logits_are_scored_as_exactly_as_small_ones(tokenizers):
    tokenizer, space = tokenizers["joined"], Space.of("My ID is: {digits:3}")
    model = make("gpt2", tokenizer)
    with torch.no_grad():
        model.transformer.ln_f.weight.mul_(40)
    tokens = tokenise(tokenizer, space, space.all_signs())
    found, known = score(model, build(*tokens)), naive(model, tokens)
    assert known.min() < -100
    np.testing.assert_allclose(found.totals, known, rtol=2e-6, atol=1e-4)


def test_a_vocabulary_of_several_slices_is_normalised_as_a_whole():
    head = torch.nn.Linear(8, 2 * trees.VOCABULARY + 5)
    states, owner, tokens = torch.randn(5, 8), torch.tensor([0, 0, 1, 4]), torch.tensor([3, 8000, 8196, 0])
    for factor in (1, 100):
        known = torch.log_softmax(head(factor * states).double(), 1)[owner, tokens]
        torch.testing.assert_close(
            trees.log_probabilities(head, factor * states, owner, tokens), known, rtol=1e-5, atol=1e-5
        )


def test_every_candidate_ends_in_a_node_of_its_own_even_inside_another():
    paths = np.array([[5, 6, -1], [5, -1, -1], [5, 6, 7], [9, 6, 7]])
    tree = build([1], paths, np.array([2, 1, 3, 2 + 1]))
    assert [tree.path(i) for i in range(4)] == [[5, 6], [5], [5, 6, 7], [9, 6, 7]]
    assert tree.inner == 5  # the stem, 5, 9, 5 6 and 9 6


@pytest.mark.parametrize("kind", ["gpt2", "lstm1"])
def test_a_candidate_that_another_one_begins_with_is_scored_too(tokenizers, kind):
    paths = np.array([[65, 66, -1], [65, -1, -1], [65, 66, 67], [69, 66, 67]])
    model, lengths = make(kind, tokenizers["bytes"]), np.array([2, 1, 3, 3])
    found = score(model, build([1, 2], paths, lengths))
    known = naive(model, Tokenised([1, 2], paths, lengths))
    np.testing.assert_allclose(found.totals, known, atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "lstm1"])
@pytest.mark.parametrize("words", ["bytes", "joined"])
def test_branch_and_bound_keeps_exactly_what_lies_above_the_floor(tokenizers, kind, words):
    tokenizer, space = tokenizers[words], Space.of("My ID is: {digits:3}")
    model = make(kind, tokenizer)
    if kind == "lstm1":
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(20)  # chances that differ, so that something can be pruned
    tree = build(*tokenise(tokenizer, space, space.all_signs()))
    whole = score(model, tree)
    for place in (1, 50, 500):
        floor = float(np.sort(whole.totals)[-place]) - 1e-5
        pruned = score(model, tree, floor=floor)
        kept = pruned.totals > -math.inf
        assert (kept == (whole.totals >= floor)).mean() > 0.999  # rounding may move one across the floor
        assert kept.sum() >= place
        np.testing.assert_allclose(pruned.totals[kept], whole.totals[kept], atol=1e-5)
        if place == 1:
            assert pruned.nodes < whole.nodes


def test_pieces_and_chunks_of_any_size_give_the_same_scores(tokenizers, monkeypatch):
    tokenizer, space = tokenizers["joined"], Space.of("My ID is: {digits:3}")
    tree = build(*tokenise(tokenizer, space, space.all_signs()))
    for kind in ("llama", "lstm2"):
        model = make(kind, tokenizer)
        known = score(model, tree).totals
        for width, nodes in ((2, 1), (9, 7), (500, 64)):
            monkeypatch.setattr(trees, "WIDTH", width)
            monkeypatch.setattr(trees, "NODES", nodes)
            np.testing.assert_allclose(score(model, tree).totals, known, atol=1e-5)
        monkeypatch.undo()


def test_a_model_that_knows_no_tree_attention_is_scored_by_plain_rows(tokenizers):
    tokenizer, space = tokenizers["bytes"], Space.of("My ID is: {digits:2}")
    tokens = tokenise(tokenizer, space, space.all_signs())
    model = make("bloom", tokenizer)  # positions are distances in the row (ALiBi)
    found = score(model, build(*tokens))
    assert found.engine == "plain"
    np.testing.assert_allclose(found.totals, naive(model, tokens), atol=1e-5)


def test_a_model_that_changes_its_mind_in_wide_rows_is_found_out(tokenizers):
    """The probe sees few nodes; scores are compared again afterwards."""
    tokenizer, space = tokenizers["bytes"], Space.of("My ID is: {digits:3}")
    tokens = tokenise(tokenizer, space, space.all_signs())
    model = make("gpt2", tokenizer)
    body = model.transformer

    def spoil(module, args, kwargs, output):
        if kwargs["attention_mask"].dim() == 4 and kwargs["input_ids"].shape[-1] > 35:
            output.last_hidden_state.mul_(1.5)
        return output

    body.register_forward_hook(spoil, with_kwargs=True)
    found = score(model, build(*tokens))
    assert found.engine == "plain"
    np.testing.assert_allclose(found.totals, naive(model, tokens), atol=1e-5)


def test_the_model_is_left_as_it_was(tokenizers):
    model = make("gpt2", tokenizers["bytes"]).train()
    space = Space.of("My ID is: {digits:2}")
    score(model, build(*tokenise(tokenizers["bytes"], space, space.all_signs())))
    assert all(module.training for module in model.modules())


def test_a_canary_longer_than_the_context_is_refused(tokenizers):
    space = Space.of("My ID is, as I have said so many times before: {digits:2}")
    tree = build(*tokenise(tokenizers["bytes"], space, space.all_signs()))
    with pytest.raises(BadInput, match="sees 48"):
        score(make("gpt2", tokenizers["bytes"]), tree)
    assert score(make("lstm1", tokenizers["bytes"]), tree).engine == "states"


def test_two_candidates_of_the_same_tokens_are_refused():
    with pytest.raises(BadInput, match="same tokens"):
        build([0], np.array([[1, 2], [3, 2], [1, 2]]), np.array([2, 2, 2]))


def test_tokens_that_the_model_does_not_know_are_refused(tokenizers):
    with pytest.raises(BadInput, match="do not fit"):
        score(make("gpt2", tokenizers["bytes"]), build([0], np.array([[1], [300]]), np.array([1, 1])))


def test_ticks_count_the_nodes(tokenizers):
    space, done = Space.of("My ID is: {digits:3}"), []
    tree = build(*tokenise(tokenizers["bytes"], space, space.all_signs()))
    for kind in ("gpt2", "lstm1"):
        done.clear()
        score(make(kind, tokenizers["bytes"]), tree, tick=done.append)
        assert sum(done) == tree.inner == 111
