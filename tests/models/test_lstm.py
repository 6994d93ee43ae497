"""The LSTM is an ordinary Hugging Face model, padding changes nothing, and the private engine knows all of it."""

import math

import pytest
import torch
import transformers as hf

from confide.dp import Plan, PrivateGradients
from confide.dp.losses import built_in
from confide.dp.noise import Lane
from confide.errors import BadInput
from confide.models import LstmConfig, LstmForCausalLM, LstmModel

WORDS = 61


def lstm(**more):
    shape = {"embedding_size": 24, "hidden_size": 24, "num_hidden_layers": 2, "initializer_range": 0.8}
    model = LstmForCausalLM(
        LstmConfig(vocab_size=WORDS, bos_token_id=0, eos_token_id=0, pad_token_id=1, **{**shape, **more})
    )
    return model.eval()


def prompts():
    """Prompts of different lengths, padded at the left; and each by itself."""
    alone = [torch.randint(2, WORDS, (length,)) for length in (3, 7, 5)]
    ids, mask = torch.ones(3, 7, dtype=torch.long), torch.zeros(3, 7, dtype=torch.long)
    for row, prompt in enumerate(alone):
        ids[row, 7 - len(prompt) :], mask[row, 7 - len(prompt) :] = prompt, 1
    return ids, mask, alone


@pytest.mark.parametrize("shape", [{}, {"tie_word_embeddings": False, "embedding_size": 16}], ids=["tied", "untied"])
def test_a_saved_model_comes_back_through_the_auto_classes(tmp_path, shape):
    model, ids = lstm(**shape), torch.randint(2, WORDS, (2, 6))
    model.save_pretrained(tmp_path)
    assert [file.suffix for file in tmp_path.glob("model*")] == [".safetensors"]
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is LstmForCausalLM
    assert torch.equal(model(ids).logits, again(ids).logits)
    assert (again.lm_head.weight is again.get_input_embeddings().weight) == (not shape)
    kept = {"max_new_tokens": 9, "do_sample": False}
    assert torch.equal(model.generate(ids, **kept), again.generate(ids, **kept))
    body = hf.AutoModel.from_pretrained(tmp_path)
    assert type(body) is LstmModel
    assert torch.equal(body(ids)[0], model.model(ids)[0])
    assert again.config.to_dict() == hf.AutoConfig.from_pretrained(tmp_path).to_dict() | {"dtype": "float32"}


def test_greedy_text_is_the_argmax_computed_anew_at_every_step():
    model, ids = lstm(), torch.randint(2, WORDS, (2, 4))
    expected = ids
    with torch.no_grad():
        for _ in range(12):
            expected = torch.cat([expected, model(expected).logits[:, -1:].argmax(-1)], 1)
    found = model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=WORDS + 1)
    assert torch.equal(found, expected)


def test_state_is_carried_and_not_computed_again(monkeypatch):
    model, widths = lstm(), []
    forward = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda ids, *rest: widths.append(ids.shape[1]) or forward(ids, *rest))
    model.generate(torch.randint(2, WORDS, (1, 9)), max_new_tokens=4, do_sample=False, eos_token_id=WORDS + 1)
    assert widths == [9, 1, 1, 1]


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"use_cache": False}], ids=["greedy", "beams", "without state"]
)
def test_a_left_padded_batch_gives_what_its_prompts_give_alone(options):
    model, (ids, mask, alone) = lstm(), prompts()
    settings = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": WORDS + 1, **options}
    together = model.generate(ids, attention_mask=mask, **settings)
    for row, prompt in enumerate(alone):
        assert torch.equal(together[row, 7:], model.generate(prompt[None], **settings)[0, len(prompt) :])


def test_beams_with_carried_state_are_beams_without():
    model, ids = lstm(), torch.randint(2, WORDS, (2, 5))
    settings = {"max_new_tokens": 6, "num_beams": 4, "do_sample": False, "num_return_sequences": 4}
    assert torch.equal(model.generate(ids, **settings), model.generate(ids, use_cache=False, **settings))


def test_sampling_stays_within_top_k_and_follows_the_seed():
    model, ids = lstm(), torch.randint(2, WORDS, (1, 5))
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(model.generate(ids, do_sample=True, top_k=3, top_p=0.9, max_new_tokens=20, num_return_sequences=4))
    assert torch.equal(*drawn)
    best = model(ids).logits[0, -1].topk(3).indices
    assert set(drawn[0][:, 5].tolist()) <= set(best.tolist())


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("side", ["left", "right", "scattered"])
def test_padding_changes_no_real_position_and_no_state(side, use_cache):
    model, ids = lstm(), torch.randint(2, WORDS, (3, 9))
    mask = torch.ones(3, 9, dtype=torch.long)
    where = {"left": slice(0, 4), "right": slice(5, 9), "scattered": [2, 3, 7, 8]}[side]
    mask[0, where] = 0
    padded = model(ids, attention_mask=mask, use_cache=use_cache)
    for row in range(3):
        real = mask[row].bool()
        alone = model(ids[row : row + 1, real], use_cache=use_cache)
        assert torch.allclose(padded.logits[row, real], alone.logits[0], atol=1e-5)
        if use_cache:
            assert torch.allclose(padded.past_key_values.h[:, row], alone.past_key_values.h[:, 0], atol=1e-5)
            assert torch.allclose(padded.past_key_values.c[:, row], alone.past_key_values.c[:, 0], atol=1e-5)


def test_no_position_sees_a_later_one():
    model, ids, mask = lstm(), torch.randint(2, WORDS, (1, 9)), torch.tensor([[0, 0, 1, 1, 0, 1, 1, 1, 1]])
    other = ids.clone()
    other[0, 7] = (ids[0, 7] + 1) % WORDS
    assert torch.equal(model(ids, attention_mask=mask).logits[0, :7], model(other, attention_mask=mask).logits[0, :7])


def test_a_row_without_any_real_position_keeps_its_state():
    model, ids = lstm(), torch.randint(2, WORDS, (2, 4))
    before = model(ids, use_cache=True).past_key_values
    mask = torch.tensor([[1, 1, 1], [0, 0, 0]])
    after = model(ids[:, :3], attention_mask=mask, past_key_values=before, use_cache=True).past_key_values
    assert torch.equal(after.c[:, 1], before.c[:, 1])
    assert not torch.allclose(after.c[:, 0], before.c[:, 0])


def test_the_loss_is_that_of_gpt2():
    model, ids = lstm(), torch.randint(2, WORDS, (3, 8))
    labels = ids.clone()
    labels[0, 3:] = -100
    found = model(ids, labels=labels)
    each = torch.nn.functional.cross_entropy(
        found.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none"
    )
    assert found.loss.item() == pytest.approx((each.sum() / (labels[:, 1:] != -100).sum()).item(), rel=1e-6)
    assert found.to_tuple()[0] is found.loss
    assert isinstance(model(ids, return_dict=False), tuple)


def test_a_tied_head_needs_equal_sizes():
    with pytest.raises(BadInput, match="tie_word_embeddings=False"):
        LstmConfig(embedding_size=10, hidden_size=20)
    with pytest.raises(BadInput, match="hidden_size"):
        LstmConfig(hidden_size=0)


def test_the_head_stays_tied_when_the_vocabulary_grows(tmp_path):
    model = lstm()
    model.resize_token_embeddings(WORDS + 5)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert model(torch.tensor([[WORDS + 4]])).logits.shape[-1] == WORDS + 5
    model.save_pretrained(tmp_path)
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.lm_head.weight is again.get_input_embeddings().weight


@pytest.mark.parametrize("shape", [{}, {"tie_word_embeddings": False, "embedding_size": 16}], ids=["tied", "untied"])
def test_private_gradients_use_the_fused_head_and_are_those_of_single_examples(monkeypatch, shape):
    monkeypatch.setattr("confide.dp.noise.COMPILED", None)
    monkeypatch.setattr(Lane, "draw", lambda self, out, std: out.zero_())
    model, ids = lstm(**shape).train(), torch.randint(2, WORDS, (5, 11))
    mask = torch.ones_like(ids)
    mask[1, 6:] = mask[3, 2:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    plan = Plan(records=5, sampling_rate=1.0, steps=1, noise_multiplier=1.0, clip_norm=0.3)
    private = PrivateGradients(model, plan, task="causal")
    norms, add = [], private._add_clipped
    monkeypatch.setattr(
        private, "_add_clipped", lambda tally, *rest: norms.append(tally.square.sum(0).sqrt()) or add(tally, *rest)
    )
    private.accumulate(inputs)
    private.release(next(plan.run()))
    private.detach()
    assert private._fused
    found = [parameter.grad * 5 for parameter in model.parameters()]
    model.zero_grad()
    true, sums = [], [torch.zeros_like(parameter) for parameter in model.parameters()]
    for row in range(5):
        real = mask[row].bool()
        alone = {"input_ids": ids[row : row + 1, real], "labels": ids[row : row + 1, real]}
        gradients = torch.autograd.grad(built_in("causal", "mean")(model, alone).sum(), list(model.parameters()))
        true.append(math.sqrt(sum(float(g.square().sum()) for g in gradients)))
        for total, gradient in zip(sums, gradients, strict=True):
            total += gradient * min(1.0, 0.3 / true[-1])
    assert torch.allclose(norms[-1], torch.tensor(true, dtype=norms[-1].dtype), rtol=1e-4)
    for one, other in zip(found, sums, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
