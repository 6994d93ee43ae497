"""Text from a trained model: as the model says it, reproducible, streamed without loss."""

import pytest
import torch
import transformers as hf

from confide.errors import BadInput
from confide.generation import _prompt_ids, _Streamer, generate
from confide.models import build, encode, load_tokenizer, save

TEXTS = [f"Agent: hello {n}. Customer: grüße, my name is late." for n in range(30)]


@pytest.fixture
def tokenizer():
    return load_tokenizer(None, "lstm", public_texts=lambda: iter(TEXTS), vocabulary_size=290)[0]


@pytest.fixture(params=["lstm:hidden_size=24,initializer_range=0.9", "gpt2-tiny:hidden_size=32,num_hidden_layers=2"])
def run(request, tmp_path, tokenizer):
    """A run folder with a model in it."""
    save(build(request.param, tokenizer, max_length=48), tokenizer, tmp_path / "model")
    return tmp_path


def test_greedy_text_is_the_models_argmax_after_bos_and_prompt(run, tokenizer):
    (found,) = generate(run, "Agent: hello", max_new_tokens=9, greedy=True)
    model = hf.AutoModelForCausalLM.from_pretrained(run / "model")
    ids = [tokenizer.bos_token_id, *encode(tokenizer, "Agent: hello")]
    start = len(ids)
    with torch.no_grad():
        for _ in range(9):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == tokenizer.eos_token_id:
                break
    made = [one for one in ids[start:] if one not in (tokenizer.eos_token_id, tokenizer.pad_token_id)]
    assert found == tokenizer.decode(made)
    assert generate(run / "model", "Agent: hello", max_new_tokens=9, greedy=True) == [found]


def test_a_seed_gives_the_same_text_again_and_leaves_the_callers_generator_alone(run):
    before = torch.get_rng_state()
    drawn = [
        generate(run, "Agent", seed=5, top_k=40, top_p=0.9, num_return_sequences=3, max_new_tokens=12) for _ in range(2)
    ]
    assert torch.equal(torch.get_rng_state(), before)
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 3
    assert generate(run, "Agent", seed=6, max_new_tokens=12) != generate(run, "Agent", seed=5, max_new_tokens=12)


def test_streamed_pieces_make_up_the_text(run):
    pieces = []
    (text,) = generate(run, "", seed=1, max_new_tokens=30, stream=pieces.append)
    assert "".join(pieces) == text
    assert len(pieces) > 1


def test_a_letter_of_several_bytes_is_shown_when_it_is_complete(tokenizer):
    pieces = []
    streamer = _Streamer(tokenizer, pieces.append)
    streamer.put(torch.tensor([[0]]))
    for one in encode(tokenizer, "a 🙂 <MASK>"):
        streamer.put(torch.tensor([one]))
    streamer.put(torch.tensor([tokenizer.eos_token_id]))
    streamer.end()
    assert "".join(pieces) == "a 🙂 <MASK>"
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_prompt_with_special_tokens_in_it_is_ordinary_text(tokenizer):
    ids = _prompt_ids(tokenizer, "<|endoftext|> and <MASK>", chat=False)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids.count(tokenizer.mask_token_id) == 1


@pytest.mark.parametrize("run", ["gpt2-tiny:hidden_size=32,num_hidden_layers=1"], indirect=True)
def test_text_ends_where_the_model_cannot_see_further(run):
    (text,) = generate(run, "Agent: hello", seed=1, max_new_tokens=1000)
    assert text
    with pytest.raises(BadInput, match="shorten it"):
        generate(run, "word " * 60)


def test_the_template_of_a_chat_model_is_used(tmp_path, tokenizer):
    save(build("lstm:hidden_size=16", tokenizer), tokenizer, tmp_path)
    with pytest.raises(BadInput, match="no chat template"):
        generate(tmp_path, "hello", chat=True)
    tokenizer.chat_template = "{% for m in messages %}Customer: {{ m.content }}{% endfor %} Agent:"
    save(build("lstm:hidden_size=16", tokenizer), tokenizer, tmp_path)
    assert len(generate(tmp_path, "hello", chat=True, max_new_tokens=3, greedy=True)) == 1
    tokenizer.chat_template = "{{ 'a' * 9999999 }}"
    save(build("lstm:hidden_size=16", tokenizer), tokenizer, tmp_path)
    with pytest.raises(
        BadInput, match=r"chat template .* cannot be used \(it makes too long a text\); leave out --chat"
    ):
        generate(tmp_path, "hello", chat=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_new_tokens": 0}, "--max-new-tokens"),
        ({"temperature": 0.0}, "--greedy"),
        ({"temperature": float("nan")}, "--temperature"),
        ({"temperature": 1e-40}, "--temperature must be at least 1e-06"),
        ({"num_return_sequences": 10**8}, "--number must be from 1 to 1,000"),
        ({"top_k": 0}, "--top-k"),
        ({"top_p": 1.5}, "--top-p"),
        ({"num_return_sequences": 0}, "--number"),
        ({"num_return_sequences": 2, "greedy": True}, "always the same"),
        ({"num_return_sequences": 2, "stream": print}, "do not stream"),
        ({"seed": -1}, "--seed"),
        ({"seed": 2**63}, "--seed must be at least 0 and below"),
    ],
)
def test_bad_numbers_are_refused_before_anything_is_loaded(tmp_path, options, words):
    with pytest.raises(BadInput, match=words):
        generate(tmp_path, "x", **options)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no model there"):
        generate(tmp_path, "x")
    with pytest.raises(BadInput, match="no such folder"):
        generate(tmp_path / "nowhere", "x")


def test_several_texts_come_without_words_of_transformers(run, capfd):
    hf.utils.logging.get_logger("transformers.modeling_utils").warning_once.cache_clear()
    level = hf.utils.logging.get_verbosity()
    generate(run, "Agent", seed=1, num_return_sequences=8, max_new_tokens=40, temperature=5.0)
    assert capfd.readouterr().err == ""
    assert hf.utils.logging.get_verbosity() == level
