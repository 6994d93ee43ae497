"""Whole models of `transformers`, tied and untied, full and LoRA, against a loop over single examples."""

import pytest
import torch
import transformers as hf
from peft import LoraConfig, get_peft_model

from confide.dp import Plan, PrivateGradients
from confide.dp.head import looks_back, without_last
from confide.dp.losses import built_in
from confide.errors import Refused

WORDS, WIDTH = 97, 24
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def gpt2(**more):
    shape = {
        "n_layer": 2,
        "n_embd": 32,
        "n_head": 4,
        "vocab_size": WORDS,
        "n_positions": 64,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**{**shape, **still, **more}))


def llama(**more):
    return hf.LlamaForCausalLM(hf.LlamaConfig(**{**SMALL, "num_key_value_heads": 2, **more}))


def smollm2(**more):
    """SmolLM2-135M's own configuration, narrowed."""
    shape = {
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 36,
        "rope_theta": 100_000.0,
        "rms_norm_eps": 1e-5,
    }
    return llama(**{**shape, "tie_word_embeddings": True, **more})


MODELS = {
    "gpt2": (gpt2, "causal"),
    "gptneox": (lambda **more: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**{**SMALL, **more})), "causal"),
    "llama": (llama, "causal"),
    "smollm2": (smollm2, "causal"),
    "phi, whose head has a bias": (
        lambda **more: hf.PhiForCausalLM(hf.PhiConfig(**{**SMALL, "resid_pdrop": 0.0, "embd_pdrop": 0.0, **more})),
        "causal",
    ),
    "opt": (
        lambda **more: hf.OPTForCausalLM(
            hf.OPTConfig(**{**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0, **more})
        ),
        "causal",
    ),
    "bert": (lambda **more: hf.BertForMaskedLM(hf.BertConfig(**{**SMALL, **STILL, **more})), "masked"),
    "roberta": (lambda **more: hf.RobertaForMaskedLM(hf.RobertaConfig(**{**SMALL, **STILL, **more})), "masked"),
    "bert classifier": (
        lambda **more: hf.BertForSequenceClassification(hf.BertConfig(**{**SMALL, **STILL, **more})),
        "classify",
    ),
    "roberta classifier": (
        lambda **more: hf.RobertaForSequenceClassification(hf.RobertaConfig(**{**SMALL, **STILL, **more})),
        "classify",
    ),
}


def batch(task, examples=5):
    ids = torch.randint(3, WORDS, (examples, WIDTH))
    mask = torch.ones_like(ids)
    mask[1, WIDTH // 2 :] = 0
    if task == "classify":
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(examples) % 2}
    labels = ids.masked_fill(mask == 0, -100)
    labels[2] = -100
    labels[2, 5] = 7
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODELS)
def test_clipped_sums_are_those_of_single_examples(name, dtype, tied, oracle, clipped, far):
    make, task = MODELS[name]
    model, inputs = make(tie_word_embeddings=tied).to(dtype), batch(task)
    norms, sums = oracle(model.train(), inputs, built_in(task, "mean"), 0.5)
    found_norms, found = clipped(model, inputs, task=task)
    exact = (
        1e-5 if dtype == torch.float32 or "llama" in name or "smol" in name else 1e-8
    )  # llama's norm computes in single
    assert torch.allclose(found_norms, norms, rtol=exact)
    assert far(found, sums) < exact


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_fused_head_is_the_loss_that_it_stands_for(reduction, clipped, far):
    model, inputs = gpt2(), batch("causal")
    plain, by_autograd = clipped(model, inputs, built_in("causal", reduction))
    fused, by_hand = clipped(model, inputs, task="causal", reduction=reduction)
    assert torch.allclose(plain, fused, rtol=1e-5)
    assert far(by_hand, by_autograd) < 2e-6


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt", "roberta classifier"])
def test_lora_adapters_alone_are_trained_and_clipped(name, oracle, clipped, far):
    make, task = MODELS[name]
    where = {"gpt2": ["c_attn", "c_proj"], "roberta classifier": ["query", "value"]}.get(
        name, ["q_proj", "v_proj", "fc1"]
    )
    model = get_peft_model(
        make(), LoraConfig(r=4, target_modules=where, lora_dropout=0.0, fan_in_fan_out=name == "gpt2")
    )
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)  # B starts at zero, and A would get no gradient
    inputs = batch(task)
    norms, sums = oracle(model.train(), inputs, built_in(task, "mean"), 0.05)
    found_norms, found = clipped(model, inputs, task=task, clip_norm=0.05)
    assert torch.allclose(found_norms, norms, rtol=1e-5)
    assert far(found, sums) < 1e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [({"use_dora": True}, "DoRA"), ({"modules_to_save": ["lm_head"]}, "modules_to_save")],
)
def test_lora_variants_without_a_rule_are_refused(options, message):
    model = get_peft_model(llama(), LoraConfig(r=4, target_modules=["q_proj"], **options))
    with pytest.raises(Refused, match=message):
        PrivateGradients(model, Plan(records=5, sampling_rate=1.0, steps=1, noise_multiplier=1.0), task="causal")


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_gradient_checkpointing_changes_nothing(name, reentrant, clipped, far):
    make, task = MODELS[name]
    model, inputs = make(), batch(task)
    norms, sums = clipped(model, inputs, task=task)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    found_norms, found = clipped(model, inputs, task=task)
    assert torch.allclose(norms, found_norms, rtol=1e-6)
    assert far(found, sums) < 1e-6


def test_bfloat16_autocast_is_close_and_still_clipped(clipped, far):
    model, inputs = gpt2(), batch("causal")
    _, sums = clipped(model, inputs, task="causal")
    with torch.autocast("cpu", torch.bfloat16):
        _, found = clipped(model, inputs, task="causal")
        alone = [clipped(model, {n: v[i : i + 1] for n, v in inputs.items()}, task="causal")[1] for i in range(5)]
    assert far(found, sums) < 0.1
    for sums in alone:
        assert sum(float(part.square().sum()) for part in sums) ** 0.5 <= 0.5 * (1 + 1e-6)


def test_a_model_with_scaled_logits_goes_without_the_fused_head(oracle, clipped, far):
    config = hf.Gemma2Config(**{**SMALL, "num_key_value_heads": 2, "head_dim": 8, "final_logit_softcapping": 2.0})
    model, inputs = hf.Gemma2ForCausalLM(config), batch("causal")
    model.model.embed_tokens.requires_grad_(False)  # scaled by √hidden_size in its own class, without a rule
    _, sums = oracle(model.train(), inputs, built_in("causal", "mean"), 0.5)
    _, found = clipped(model, inputs, task="causal")
    assert far(found, sums) < 1e-5


def test_mixtures_of_experts_are_refused():
    config = hf.MixtralConfig(**{**SMALL, "num_key_value_heads": 2, "num_local_experts": 2})
    with pytest.raises(Refused, match="mixture-of-experts"):
        PrivateGradients(
            hf.MixtralForCausalLM(config), Plan(records=5, sampling_rate=1.0, steps=1, noise_multiplier=1.0)
        )


def test_the_model_stays_as_it_was(silent):
    model, inputs = gpt2(), batch("causal")
    names, forward = list(model.state_dict()), model.forward
    plan = Plan(records=5, sampling_rate=1.0, steps=1, noise_multiplier=1.0)
    private = PrivateGradients(model.train(), plan, task="causal")
    private.accumulate(inputs)
    private.release(next(plan.run()))
    assert list(model.state_dict()) == names
    assert model.forward == forward
    assert all(parameter.requires_grad for parameter in model.parameters())
    model.eval()
    assert model.generate(inputs["input_ids"][:1, :4], max_new_tokens=3, do_sample=False).shape == (1, 7)
    model.train()
    model.zero_grad()
    model(**inputs).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_last_position_is_left_out_only_where_no_other_sees_it():
    sizes = {
        "vocab_size": 50,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    row = {"input_ids": torch.randint(0, 50, (1, 7)), "attention_mask": torch.ones(1, 7)}
    for decoder in (True, False):
        model = hf.BertLMHeadModel(hf.BertConfig(**sizes, is_decoder=decoder)).eval()
        assert looks_back(model, row) == decoder
    assert {name: value.shape[1] for name, value in without_last({**row, "labels": row["input_ids"]}).items()} == {
        "input_ids": 6,
        "attention_mask": 6,
    }
    for inputs in ({"input_ids": row["input_ids"][:, :1]}, {**row, "bias": torch.zeros(1, 7, 7)}):
        assert without_last(inputs) is inputs
