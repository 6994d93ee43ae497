"""Vocabularies come from public text or from elsewhere, and every tokenizer has one id for a masked secret."""

import inspect
import json

import pytest
import transformers as hf

from confide.errors import BadInput, Refused
from confide.models import add_placeholders, encode, load_tokenizer, prepare, tokens


def test_a_vocabulary_is_trained_on_the_public_part_alone(tokenizer):
    again, kind = load_tokenizer(
        None, "gpt2-tiny", public_texts=lambda: iter(["zebra zebra zebra <MASK> zebra"] * 9), vocabulary_size=300
    )
    assert kind == "public"
    assert "Ġzebra" in again.get_vocab()
    assert not any("MASK" in token for token in again.get_vocab() if token != "<MASK>")
    assert "Ġzebra" not in tokenizer.get_vocab()
    assert (again.bos_token, again.eos_token, again.pad_token, again.mask_token) == (
        "<|endoftext|>", "<|endoftext|>", "<|pad|>", "<MASK>",
    )  # fmt: skip


def test_no_function_takes_private_text():
    for name, function in inspect.getmembers(tokens, inspect.isfunction):
        assert not [p for p in inspect.signature(function).parameters if "private" in p], name


@pytest.mark.parametrize("texts", [None, lambda: iter([]), lambda: iter(["<MASK>", " "])])
def test_an_empty_public_part_is_refused_with_what_to_do(texts):
    with pytest.raises(Refused, match=r"--tokenizer NAME\|DIR.*--vocabulary-from FILE"):
        load_tokenizer(None, "lstm:hidden_size=20", public_texts=texts)


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_an_outside_file_may_give_the_vocabulary(tmp_path, suffix):
    lines = ["giraffe giraffe giraffe"] * 5
    file = tmp_path / f"outside{suffix}"
    file.write_text("\n".join(json.dumps({"text": line}) if suffix == ".jsonl" else line for line in lines))
    found, kind = load_tokenizer(
        None, "lstm", public_texts=lambda: iter(["zebra"] * 9), external=file, vocabulary_size=300
    )
    assert kind == "external"
    assert "Ġgiraffe" in found.get_vocab()
    with pytest.raises(BadInput, match="only one"):
        load_tokenizer("somewhere", "lstm", external=file)
    with pytest.raises(BadInput, match="at least 259"):
        load_tokenizer(None, "lstm", external=file, vocabulary_size=100)


def test_any_text_survives_encoding(tokenizer):
    text = "Grüße, 你好 \t <|endoftext|> 🙂"
    ids = encode(tokenizer, text)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert tokenizer.eos_token_id not in ids


def test_a_masked_secret_is_one_id_and_special_tokens_in_text_are_letters(tokenizer):
    ids = encode(tokenizer, "I am <MASK>, card <MASK><|pad|>")
    assert ids.count(tokenizer.mask_token_id) == 2
    assert tokenizer.pad_token_id not in ids
    assert encode(tokenizer, "<MASK>") == [tokenizer.mask_token_id]
    assert encode(tokenizer, "") == []


def test_a_pretrained_tokenizer_gets_a_mask_and_padding_once(gpt2):
    found, kind = load_tokenizer(None, str(gpt2))
    assert kind == "pretrained"
    assert found.mask_token == "<MASK>"
    assert found.pad_token_id == found.eos_token_id
    before = found.get_vocab()
    assert prepare(found).get_vocab() == before


def test_roberta_keeps_its_own_mask(roberta):
    found, _ = load_tokenizer(None, str(roberta))
    assert found.mask_token == "<mask>"
    assert "<MASK>" not in found.get_vocab()
    assert encode(found, "a <MASK> b").count(found.mask_token_id) == 1
    assert found.mask_token_id not in encode(found, "a <mask> b")


@pytest.mark.parametrize("files", ["tokenizer.json", "vocab.json and merges.txt"])
def test_a_bare_folder_is_enough(tmp_path, tokenizer, files):
    folder = tmp_path / "bare"
    folder.mkdir()
    if files == "tokenizer.json":
        tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    else:
        tokenizer.backend_tokenizer.model.save(str(folder))
    found, kind = load_tokenizer(str(folder), "lstm")
    assert kind == "pretrained"
    assert found.bos_token == found.eos_token == "<|endoftext|>"
    text = "Customer: my parcel is late, <MASK>"
    assert encode(found, text) == encode(tokenizer, text)
    assert found.decode(encode(found, "hello there")) == "hello there"


GROWING = {"type": "Replace", "pattern": {"String": "z"}, "content": "z" * 30}


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Sequence", "normalizers": [GROWING] * 5},
        {"type": "Replace", "pattern": {"String": ""}, "content": "z"},
        {"type": "Prepend", "prepend": "z" * 100},
    ],
)
def test_a_tokenizer_that_writes_ever_more_signs_is_refused(tmp_path, tokenizer, normalizer):
    path = tmp_path / "tokenizer.json"
    tokenizer.backend_tokenizer.save(str(path))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": normalizer}))
    with pytest.raises(BadInput, match="more than 64 signs in place of one"):
        load_tokenizer(str(tmp_path), "lstm")


def test_a_tokenizer_that_panics_is_refused_in_one_line(tmp_path, tokenizer, capfd):
    """A panic of the library is no Exception. Here a pattern gives up on a text that it cannot match in any time."""
    path = tmp_path / "tokenizer.json"
    tokenizer.backend_tokenizer.save(str(path))
    hangs = {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pre_tokenizer": hangs}))
    found, _ = load_tokenizer(str(tmp_path), "lstm")
    with pytest.raises(BadInput, match="the tokenizer fails on a text"):
        encode(found, "a" * 50)
    garbled = json.loads(path.read_text()) | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}}
    path.write_text(json.dumps(garbled))
    with pytest.raises(BadInput):
        encode(load_tokenizer(str(tmp_path), "lstm")[0], "some text")


def test_a_name_that_is_nearly_a_model_made_here_is_answered_with_it(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput, match="did you mean gpt2-tiny"):
        load_tokenizer(None, "gpt-tiny")


def test_what_is_no_tokenizer_is_refused_in_clear_words(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput, match="no tokenizer"):
        load_tokenizer(str(tmp_path), "lstm")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        load_tokenizer(str(tmp_path), "lstm")
    hf.GPT2Config(vocab_size=30).save_pretrained(tmp_path / "model")
    with pytest.raises(BadInput, match=r"no tokenizer|cannot load the tokenizer"):
        load_tokenizer(None, str(tmp_path / "model"))


def test_placeholders_are_special_tokens_of_their_own(tokenizer):
    size = len(tokenizer)
    found = add_placeholders(tokenizer, ["NAME", "EMAIL_ADDRESS", "NAME"])
    assert sorted(found.values()) == [size, size + 1]
    assert tokenizer.convert_ids_to_tokens(found["EMAIL_ADDRESS"]) == "<email_address>"
    assert add_placeholders(tokenizer, ["NAME", "EMAIL_ADDRESS"]) == found
    assert found["NAME"] not in encode(tokenizer, "a literal <name>")


def test_a_placeholder_never_takes_the_place_of_another_token(roberta):
    found, _ = load_tokenizer(None, str(roberta))
    with pytest.raises(BadInput, match="rename it"):
        add_placeholders(found, ["MASK"])
    with pytest.raises(BadInput, match="no name"):
        add_placeholders(found, [" "])
