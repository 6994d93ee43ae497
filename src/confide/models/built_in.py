"""Models that are made here: `lstm` or `gpt2-tiny` with a few options in words in; the model with new weights out."""

from __future__ import annotations

from typing import Any

import transformers

from ..errors import BadInput
from .lstm import LstmConfig, LstmForCausalLM
from .tokens import room

MOST = {
    "embedding_size": 1 << 16,
    "hidden_size": 1 << 16,
    "num_hidden_layers": 1000,
    "num_attention_heads": 1000,
    "max_position_embeddings": 1 << 20,
}
GPT2_TINY = {"n_layer": 4, "n_embd": 128, "n_head": 4, "n_positions": 256}


def built_in(
    name: str, given: str, tokenizer: Any, task: str, labels: dict[str, Any], max_length: int | None, dropout: float
) -> Any:
    """The model `name:given`, with new weights and room for all of the tokenizer's tokens."""
    options = _options(name, given)
    if name == "lstm":
        if task != "causal":
            raise BadInput(
                "the LSTM is a language model and no classifier; take gpt2-tiny, or a hub model such as roberta-base"
            )
        if "hidden_size" in options and options.get("tie_word_embeddings", True):
            options.setdefault("embedding_size", options["hidden_size"])
        return LstmForCausalLM(made(LstmConfig, name, {"dropout": dropout, **options, "vocab_size": room(tokenizer)}))
    positions = {} if max_length is None else {"n_positions": max_length}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout"), dropout)
    shape = {**GPT2_TINY, **positions, **drops, **options, **labels, "vocab_size": room(tokenizer)}
    if shape["n_embd"] % shape["n_head"]:
        raise BadInput(
            f"gpt2-tiny: hidden_size {shape['n_embd']} is not a multiple of {shape['n_head']} attention heads"
        )
    config = made(transformers.GPT2Config, name, shape)
    name_tokens(config, tokenizer, new=True)
    kind = transformers.GPT2LMHeadModel if task == "causal" else transformers.GPT2ForSequenceClassification
    return kind(config)


def _options(name: str, given: str) -> dict[str, Any]:
    """`hidden_size=300,num_hidden_layers=2` as a dictionary; sizes go by the same names for every model."""
    known = {
        "lstm": ("embedding_size", "hidden_size", "num_hidden_layers", "dropout", "tie_word_embeddings", "initializer_range"),
        "gpt2-tiny": ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "tie_word_embeddings"),
    }[name]  # fmt: skip
    options: dict[str, Any] = {}
    for item in filter(None, given.split(",")):
        key, _, value = item.partition("=")
        if key not in known:
            raise BadInput(f"{name}: unknown option {key!r}; it has {', '.join(known)}")
        found = _value(item, value)
        if key in MOST and not 1 <= found <= MOST[key]:
            raise BadInput(f"{name}: {key} is a whole number from 1 to {MOST[key]:,}")
        options[transformers.GPT2Config.attribute_map.get(key, key) if name == "gpt2-tiny" else key] = found
    return options


def _value(item: str, text: str) -> int | float | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    raise BadInput(f"{item}: write it as name=number, or name=true or name=false")


def made(kind: Any, name: str, values: dict[str, Any]) -> Any:
    """What `kind` makes of the values; `name` says whose they were if it refuses them."""
    try:
        return kind(**values)
    except BadInput:
        raise
    except Exception as error:  # transformers checks its configurations in ways that differ by version
        raise BadInput(f"{name}: {str(error).splitlines()[0]}") from None


def name_tokens(config: Any, tokenizer: Any, *, new: bool) -> None:
    """Write the tokenizer's special ids into the configuration; a pretrained model keeps the bos and eos that it has."""
    config.pad_token_id = tokenizer.pad_token_id  # classifiers look for the last token before it
    for name in ("bos_token_id", "eos_token_id"):
        if new or getattr(config, name, None) is None:
            setattr(config, name, getattr(tokenizer, name))
