"""Small public texts, tokenizers of them, and folders that stand in for models of the hub."""

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

from confide.models import load_tokenizer, prepare, save

END = "<|endoftext|>"
TEXTS = [f"Agent: hello, how may I help you? Customer: my parcel number {n} is late." for n in range(40)]


@pytest.fixture(autouse=True)
def _same_weights():
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tokenizer():
    return load_tokenizer(None, "lstm", public_texts=lambda: iter(TEXTS), vocabulary_size=290)[0]


def of(vocabulary, **specials):
    """A byte-level tokenizer without merges of the tokens of a vocabulary, in their order."""
    numbered = {token: n for n, token in enumerate(sorted(vocabulary, key=vocabulary.get))}
    backend = Tokenizer(models.BPE(vocab=numbered, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=END, eos_token=END, **specials)


@pytest.fixture
def plain(tokenizer):
    """A tokenizer like GPT-2's: one special token for beginning and end, none for padding or masks."""
    return of({token: n for token, n in tokenizer.get_vocab().items() if n not in (1, 2)})


@pytest.fixture
def gpt2(tmp_path, plain):
    """A folder as of the hub: a pretrained GPT-2 with its tokenizer, without mask and padding."""
    shape = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
    folder = tmp_path / "gpt2"
    save(hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=len(plain), **shape)), plain, folder)
    return folder


@pytest.fixture
def roberta(tmp_path, tokenizer):
    """A folder as of the hub: a RoBERTa whose tokenizer has a mask of its own."""
    vocabulary = {token: n for token, n in tokenizer.get_vocab().items() if n != 2} | {"<mask>": 999}
    masked = of(vocabulary, pad_token="<|pad|>", mask_token="<mask>")
    config = hf.RobertaConfig(
        vocab_size=len(masked), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=66, pad_token_id=1, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    folder = tmp_path / "roberta"
    save(hf.RobertaForMaskedLM(config), masked, folder)
    return folder


@pytest.fixture
def own():
    """A function to the prepared tokenizer of a folder."""
    return lambda folder: prepare(load_tokenizer(None, str(folder))[0])
