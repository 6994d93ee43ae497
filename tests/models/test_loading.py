"""Models by name: only safetensors, never code that comes with them, with the tokenizer that belongs to them."""

import contextlib
import json
import socket
import time

import huggingface_hub.constants as hub
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from confide.cli import main
from confide.dp import Plan, PrivateGradients
from confide.errors import BadInput
from confide.generation import generate
from confide.models import Lora, build, encode, load_tokenizer, load_trained, prepare, save
from confide.models.tokens import _hub_answers


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_lstm_by_name_is_the_papers(tokenizer):
    model = build("lstm", tokenizer)
    assert model.config.hidden_size == model.config.embedding_size == 200
    assert model.config.num_hidden_layers == 1
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


@pytest.mark.parametrize(
    "spec", ["lstm:hidden_size=16,num_hidden_layers=2", "gpt2-tiny:hidden_size=16,num_hidden_layers=1"]
)
def test_weights_follow_the_public_seed_and_the_callers_generator_is_left_alone(tokenizer, spec):
    before = torch.get_rng_state()
    one, two, other = build(spec, tokenizer, seed=1), build(spec, tokenizer, seed=1), build(spec, tokenizer, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert same(weights(one), weights(two))
    assert not same(weights(one), weights(other))
    assert one.config.hidden_size == 16
    assert one.get_input_embeddings().weight is one.get_output_embeddings().weight
    assert not any(module.p for module in one.modules() if isinstance(module, torch.nn.Dropout))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("lstm:colour=3", "unknown option 'colour'; it has"),
        ("lstm:hidden_size=wide", "name=number"),
        ("lstm:embedding_size=3", "tie_word_embeddings=False"),
        ("gpt2-tiny:hidden_size=30", "not a multiple of 4"),
        ("weights.gguf", "GGUF"),
    ],
)
def test_a_bad_spec_is_refused_in_clear_words(tokenizer, spec, words):
    with pytest.raises(BadInput, match=words):
        build(spec, tokenizer)


def test_bad_use_is_refused_in_clear_words(tokenizer, gpt2, roberta, own):
    with pytest.raises(BadInput, match="task must be one of"):
        build("lstm", tokenizer, task="translate")
    with pytest.raises(BadInput, match="--classes"):
        build("gpt2-tiny", tokenizer, task="classify")
    with pytest.raises(BadInput, match="no classifier"):
        build("lstm", tokenizer, task="classify", classes=2)
    with pytest.raises(BadInput, match="at most 64 tokens"):
        build(str(gpt2), own(gpt2), max_length=65)
    with pytest.raises(BadInput, match="at most 64 tokens"):  # RoBERTa keeps two positions for itself
        build(str(roberta), own(roberta), task="classify", classes=2, max_length=65)


def test_a_pretrained_model_keeps_its_weights_and_gets_a_row_for_the_mask(gpt2, own):
    found = own(gpt2)
    pretrained = load_file(gpt2 / "model.safetensors")["transformer.wte.weight"]
    model = build(str(gpt2), found)
    embedding = model.get_input_embeddings().weight
    assert found.mask_token_id == len(pretrained)
    assert len(embedding) == model.config.vocab_size == len(pretrained) + 1
    assert torch.equal(embedding[:-1], pretrained)
    assert torch.allclose(embedding[-1], pretrained.mean(0), atol=1e-3)
    assert embedding is model.get_output_embeddings().weight
    assert model.config.attn_pdrop == model.config.resid_pdrop == 0
    assert same(weights(model), weights(build(str(gpt2), found)))


def test_a_trained_lstm_is_a_model_to_go_on_from(tokenizer, tmp_path):
    model = build("lstm:hidden_size=16", tokenizer)
    save(model, tokenizer, tmp_path)
    found, kind = load_tokenizer(None, str(tmp_path))
    assert kind == "pretrained"
    assert same(weights(build(str(tmp_path), found)), weights(model))


def test_from_scratch_takes_the_shape_alone(gpt2, own, tokenizer):
    model = build(str(gpt2), tokenizer, from_scratch=True)
    assert (model.config.n_embd, model.config.vocab_size) == (32, len(tokenizer))
    assert model.config.pad_token_id == tokenizer.pad_token_id
    pretrained = load_file(gpt2 / "model.safetensors")["transformer.h.0.attn.c_attn.weight"]
    assert not torch.equal(model.transformer.h[0].attn.c_attn.weight, pretrained)
    (gpt2 / "model.safetensors").unlink()
    assert same(weights(model), weights(build(str(gpt2), tokenizer, from_scratch=True)))


def test_from_scratch_the_end_of_a_text_is_learned_though_padding_is_written_the_same(tmp_path, plain):
    shape = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 90,
    }
    hf.LlamaConfig(**shape, pad_token_id=80).save_pretrained(tmp_path)
    model = build(str(tmp_path), prepare(plain), from_scratch=True)
    assert model.config.pad_token_id == model.config.eos_token_id == 0
    assert model.get_input_embeddings().weight[0].abs().max() > 0
    ids = torch.tensor([[0, 5, 6]])
    model(ids, labels=ids).loss.backward()
    assert model.get_input_embeddings().weight.grad[0].abs().max() > 0


def test_half_precision_weights_are_trained_in_single(gpt2, own):
    hf.GPT2LMHeadModel.from_pretrained(gpt2).to(torch.bfloat16).save_pretrained(gpt2)
    assert {p.dtype for p in build(str(gpt2), own(gpt2)).parameters()} == {torch.float32}


def test_pickled_weights_are_refused(gpt2, own):
    found = own(gpt2)
    torch.save(load_file(gpt2 / "model.safetensors"), gpt2 / "pytorch_model.bin")
    (gpt2 / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"pytorch_model.bin.*can run code.*save_pretrained\(\)"):
        build(str(gpt2), found)
    (gpt2 / "pytorch_model.bin").unlink()
    with pytest.raises(BadInput, match="no weights"):
        build(str(gpt2), found)


@pytest.mark.parametrize("known", [True, False], ids=["a type that transformers knows", "one of its own"])
def test_code_that_comes_with_a_model_never_runs(gpt2, own, tmp_path, known):
    found, config = own(gpt2), json.loads((gpt2 / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    if not known:
        config["model_type"] = "evil"
    (gpt2 / "config.json").write_text(json.dumps(config))
    (gpt2 / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(BadInput, match=r"evil\.py is code or a pickle"):
        build(str(gpt2), found)
    (gpt2 / "evil.py").unlink()
    with pytest.raises(BadInput, match="names code of its own"):
        build(str(gpt2), found)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name", ["weights.pt", "training_args.bin", "x.PKL", "custom_generate/generate.py", "tokenization.py"]
)
def test_a_folder_with_code_or_pickles_is_refused_by_name_before_anything_is_loaded(gpt2, own, name):
    found = own(gpt2)
    (gpt2 / name).parent.mkdir(exist_ok=True)
    (gpt2 / name).symlink_to("/dev/null")
    for load in (lambda: build(str(gpt2), found), lambda: load_tokenizer(None, str(gpt2))):
        with pytest.raises(BadInput, match=f"{name} is code or a pickle"):
            load()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('"auto\\u005fmap": {"AutoModel": "x.Y"}', "names code of its own"),
        ('"text_config": {"attn_implementation": "evil/kernel"}', "may be code"),
        ('"_attn_implementation": "evil/kernel"', "may be code"),
        ('"n_layer": 1000000000', "n_layer is a whole number"),
    ],
)
def test_a_configuration_that_points_to_code_or_to_no_model_is_refused(gpt2, own, line, says):
    found = own(gpt2)
    text = (gpt2 / "config.json").read_text()
    (gpt2 / "config.json").write_text(text.rstrip()[:-1] + f", {line}}}")
    with pytest.raises(BadInput, match=says):
        build(str(gpt2), found)


@pytest.mark.parametrize("where", ["tokenizer", "generate"])
def test_code_beside_a_known_model_never_runs(gpt2, tmp_path, where):
    evil = f"open({str(tmp_path / 'ran')!r}, 'w')"
    if where == "tokenizer":
        settings = json.loads((gpt2 / "tokenizer_config.json").read_text())
        settings |= {"auto_map": {"AutoTokenizer": ["evil.Slow", "evil.Fast"]}, "tokenizer_class": "Evil"}
        (gpt2 / "tokenizer_config.json").write_text(json.dumps(settings))
        (gpt2 / "evil.py").write_text(evil)
    else:
        (gpt2 / "custom_generate").mkdir()
        (gpt2 / "custom_generate" / "generate.py").write_text(evil)
    with contextlib.suppress(BadInput):
        model = build(str(gpt2), load_tokenizer(None, str(gpt2))[0])
        model.generate(torch.tensor([[0, 5]]), max_new_tokens=2)
    assert not (tmp_path / "ran").exists()


def test_an_adapter_is_not_a_model(gpt2, own):
    found = own(gpt2)
    (gpt2 / "adapter_config.json").write_text("{}")
    with pytest.raises(BadInput, match="merge it first"):
        build(str(gpt2), found)


def test_another_models_tokenizer_is_refused(gpt2, tokenizer, tmp_path):
    numbers = [f"{n} " * 9 for n in range(999)]
    larger, _ = load_tokenizer(None, "lstm", public_texts=lambda: iter(numbers), vocabulary_size=400)
    with pytest.raises(BadInput, match="do not belong together"):  # ids beyond the model's rows
        build(str(gpt2), larger)
    own, other = gpt2 / "tokenizer.json", tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text(
        own.read_text().replace('"a":', '"?":').replace('"b":', '"a":').replace('"?":', '"b":')
    )
    with pytest.raises(BadInput, match="gives other ids"):  # as many tokens, but others
        build(str(gpt2), load_tokenizer(str(other), str(gpt2))[0])
    hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=900, n_layer=1, n_embd=16, n_head=2)).save_pretrained(tmp_path / "wide")
    with pytest.raises(BadInput, match="the tokenizer only 290; they do not belong together"):
        build(str(tmp_path / "wide"), tokenizer)


def test_a_model_without_a_tokenizer_takes_one_of_its_size(tmp_path, tokenizer):
    hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=300, n_layer=1, n_embd=16, n_head=2)).save_pretrained(tmp_path)
    model = build(str(tmp_path), tokenizer)
    assert len(model.get_input_embeddings().weight) == 300


def test_a_model_that_sees_what_it_is_to_predict_is_refused(roberta, own):
    hf.RobertaForCausalLM.from_pretrained(roberta).save_pretrained(roberta)
    with pytest.raises(BadInput, match="no causal language model"):
        build(str(roberta), own(roberta))


def test_missing_weights_are_refused(gpt2, own):
    partial = {k: v for k, v in load_file(gpt2 / "model.safetensors").items() if "h.1" not in k}
    save_file(partial, gpt2 / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInput, match="weights are missing"):
        build(str(gpt2), own(gpt2))


def test_a_folder_that_holds_no_model_and_a_name_that_nobody_knows(tmp_path, tokenizer, monkeypatch):
    with pytest.raises(BadInput, match=r"no config\.json"):
        build(str(tmp_path), tokenizer)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput, match="no such folder, and the model hub cannot be reached or does not know it"):
        build("nobody/nothing", tokenizer)


def test_a_classifier_gets_a_new_head_and_keeps_its_own_mask(roberta, own):
    found = own(roberta)
    model = build(str(roberta), found, task="classify", classes=3)
    ids = torch.tensor([encode(found, "a <MASK> b")])
    assert model(input_ids=ids).logits.shape == (1, 3)
    assert len(model.get_input_embeddings().weight) == len(found)
    assert same(weights(model), weights(build(str(roberta), found, task="classify", classes=3)))
    assert build("gpt2-tiny:hidden_size=16", found, task="classify", classes=3).config.num_labels == 3


def step(model, inputs, task):
    plan = Plan(records=4, sampling_rate=1.0, steps=1, noise_multiplier=0.1, clip_norm=1.0)
    private = PrivateGradients(model.train(), plan, task=task)
    private.accumulate(inputs)
    private.release(next(plan.run()))
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0).step()
    private.detach()


def test_lora_is_trained_privately_and_saved_as_plain_weights(gpt2, own, tmp_path):
    found = own(gpt2)
    model = build(str(gpt2), found, lora=Lora(rank=4))
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    ids = torch.randint(3, 250, (4, 9))
    step(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}, "causal")
    before = weights(model)
    save(model, found, tmp_path / "out")
    assert same(before, weights(model))
    again, read = load_trained(tmp_path / "out")
    assert type(again) is hf.GPT2LMHeadModel
    assert torch.allclose(again(ids).logits, model.eval()(ids).logits, atol=1e-5)
    assert not torch.allclose(again(ids).logits, build(str(gpt2), found).eval()(ids).logits, atol=1e-3)
    assert again.lm_head.weight is again.get_input_embeddings().weight
    assert read.mask_token_id == found.mask_token_id
    assert not list((tmp_path / "out").glob("adapter*"))


def test_lora_of_a_classifier_trains_the_new_head_too(roberta, own, tmp_path):
    found = own(roberta)
    model = build(str(roberta), found, task="classify", classes=2, lora=Lora(targets=("query",)))
    start = weights(model)
    ids = torch.randint(3, 250, (4, 9))
    step(
        model,
        {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 1, 0, 1])},
        "classify",
    )
    moved = {name for name, value in weights(model).items() if not torch.equal(value, start[name])}
    assert all("lora_" in name or ".classifier." in name for name in moved)
    assert any(".classifier." in name for name in moved)
    save(model, found, tmp_path / "out")
    assert torch.allclose(load_trained(tmp_path / "out")[0](ids).logits, model.eval()(ids).logits, atol=1e-5)


def test_lora_that_cannot_be_is_refused(gpt2, own, tokenizer):
    with pytest.raises(BadInput, match="the LSTM has none"):
        build("lstm", tokenizer, lora=Lora())
    with pytest.raises(BadInput, match="LoRA cannot be applied"):
        build(str(gpt2), own(gpt2), lora=Lora(targets=("nowhere",)))


def test_saved_models_come_back(tokenizer, tmp_path):
    for spec in ("lstm:hidden_size=16", "gpt2-tiny:hidden_size=16"):
        model = build(spec, tokenizer)
        save(model, tokenizer, tmp_path / spec)
        again, read = load_trained(tmp_path / spec)
        assert same(weights(model), weights(again))
        assert not again.training
        assert prepare(read).get_vocab() == tokenizer.get_vocab()
        assert (read.bos_token_id, read.pad_token_id, read.mask_token_id) == (0, 1, 2)


def test_text_ends_where_training_ended_it_and_a_models_own_taste_does_not_keep_it_from_being_saved(
    gpt2, own, tmp_path
):
    taste = {"temperature": 0.6, "top_p": 0.9, "eos_token_id": [5, 6], "do_sample": False}
    (gpt2 / "generation_config.json").write_text(json.dumps(taste))
    found = own(gpt2)
    model = build(str(gpt2), found)
    assert model.generation_config.eos_token_id == [found.eos_token_id, 5, 6]
    assert model.generation_config.pad_token_id == model.config.pad_token_id == found.pad_token_id
    save(model, found, tmp_path / "out")
    assert load_trained(tmp_path / "out")[0].generation_config.eos_token_id == [found.eos_token_id, 5, 6]


BAD_WAYS = {
    "{": "generation_config.json is not JSON",
    "[" * 10**5: "generation_config.json is not JSON",
    "\x80": "generation_config.json is not JSON",
    "[1]": "generation_config.json holds no settings",
    "null": "generation_config.json holds no settings",
    '{"eos_token_id": "x"}': "eos_token_id",
    '{"eos_token_id": [1, null]}': "eos_token_id",
    '{"eos_token_id": 1000000000000000000000000000000}': "eos_token_id",
    '{"temperature": "hot"}': "temperature",
    '{"temperature": NaN}': "temperature",
    '{"do_sample": [1]}': "do_sample",
    '{"repetition_penalty": true}': "repetition_penalty",
    '{"watermarking_config": {"a": 1}}': "cannot load the model",
}


@pytest.mark.parametrize("content", BAD_WAYS, ids=lambda content: content[:30])
def test_a_corrupt_generation_config_is_refused_by_every_command(gpt2, own, content, capsys):
    (gpt2 / "SHA256SUMS").unlink()  # of another program
    found = own(gpt2)
    (gpt2 / "generation_config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(BadInput, match=BAD_WAYS[content]):
        build(str(gpt2), found)
    texts = gpt2 / "texts.txt"
    texts.write_text("hello")
    for command in (["generate", str(gpt2)], ["attack", "--model", str(gpt2), "--members", texts, "--others", texts]):
        with pytest.raises(SystemExit) as stopped:
            main([str(one) for one in command])
        said = capsys.readouterr().err
        assert stopped.value.code == 2, said
        assert BAD_WAYS[content] in said


def test_a_generation_config_without_end_is_refused(gpt2):
    with (gpt2 / "generation_config.json").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(BadInput, match=r"generation_config\.json is larger than 64 MB"):
        load_tokenizer(None, str(gpt2))


def test_of_a_models_own_taste_nothing_is_kept_that_could_take_any_time(gpt2, own, tmp_path):
    taste = {
        "do_sample": True,
        "temperature": 0.6,
        "repetition_penalty": 2,
        "num_beams": 10**9,
        "bad_words_ids": [[1.5]],
    }
    (gpt2 / "generation_config.json").write_text(json.dumps(taste))
    save(build(str(gpt2), own(gpt2)), own(gpt2), tmp_path / "out")
    for folder in (gpt2, tmp_path / "out"):
        (folder / "SHA256SUMS").unlink()
        kept = load_trained(folder)[0].generation_config
        assert (kept.do_sample, kept.temperature, kept.repetition_penalty) == (True, 0.6, 2.0)
        assert (kept.num_beams or 1) == 1
        assert not kept.bad_words_ids
        assert generate(folder, "Agent", max_new_tokens=2)


def test_a_broken_folder_is_named(gpt2):
    (gpt2 / "config.json").write_text("{")
    with pytest.raises(BadInput, match=r"gpt2 is damaged: .* as SHA256SUMS says; bring them back"):
        load_trained(gpt2)
    (gpt2 / "SHA256SUMS").unlink()  # of another program
    with pytest.raises(BadInput, match=r"gpt2: (cannot load the model|config.json is not JSON)"):
        load_trained(gpt2)
    with pytest.raises(BadInput, match="no model there"):
        load_trained(gpt2 / "nowhere")


def test_nothing_is_reported_to_the_hub():
    assert hub.HF_HUB_DISABLE_TELEMETRY


def test_a_folder_is_loaded_without_a_connection(gpt2, monkeypatch):
    asked = []
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, lambda *given, **_: asked.append(given))
    monkeypatch.setattr(socket.socket, "connect", lambda *given: asked.append(given))
    found, _ = load_tokenizer(None, str(gpt2))
    save(build(str(gpt2), found), found, gpt2 / "out")
    load_trained(gpt2 / "out")
    assert not asked


def test_a_classifier_keeps_the_names_of_its_classes(roberta, own, tmp_path):
    found = own(roberta)
    for spec in (str(roberta), "gpt2-tiny:hidden_size=16"):
        model = build(spec, found, task="classify", classes=("ugly", "good", "bad"))
        save(model, found, tmp_path / "out")
        config = hf.AutoConfig.from_pretrained(tmp_path / "out")
        assert config.id2label == {0: "ugly", 1: "good", 2: "bad"}
        assert config.label2id == {"ugly": 0, "good": 1, "bad": 2}
        assert load_trained(tmp_path / "out")[0].config.num_labels == 3
    for classes in (("one",), ("one", "one"), 1, None):
        with pytest.raises(BadInput, match="--classes"):
            build(str(roberta), found, task="classify", classes=classes)


def test_a_length_beyond_the_model_is_named_as_the_option(gpt2, own):
    with pytest.raises(BadInput, match="--max-length 65 is more"):
        build(str(gpt2), own(gpt2), max_length=65)


@pytest.mark.parametrize("proxy", [None, "http://127.0.0.1:9"])
def test_a_name_of_the_hub_is_refused_soon_if_nothing_answers(tokenizer, monkeypatch, proxy):
    asked = []

    class Session:
        def head(self, address, timeout):
            asked.append(timeout)
            raise OSError("nobody is there")

    monkeypatch.setattr("huggingface_hub.get_session", Session)
    if proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
    _hub_answers.cache_clear()
    began = time.perf_counter()
    for call in (
        lambda: load_tokenizer(None, "nobody/nothing"),
        lambda: load_tokenizer("nobody/nothing", "lstm"),
        lambda: build("nobody/nothing", tokenizer),
        lambda: build("nobody/nothing", tokenizer, from_scratch=True),
    ):
        with pytest.raises(BadInput, match="cannot be reached"):
            call()
    assert time.perf_counter() - began < 10
    assert asked == [5]  # once for all of them
    _hub_answers.cache_clear()


def test_a_hub_whose_address_is_never_found_is_not_waited_for(monkeypatch):
    class Session:
        def head(self, address, timeout):
            time.sleep(3)

    monkeypatch.setattr("huggingface_hub.get_session", Session)
    monkeypatch.setattr("confide.models.tokens.PATIENCE", 0.05)
    _hub_answers.cache_clear()
    began = time.perf_counter()
    assert not _hub_answers()
    assert time.perf_counter() - began < 2.9  # it would sleep for 3
    _hub_answers.cache_clear()
