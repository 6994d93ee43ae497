"""Sampling: a model and prompts come in; what the model writes after each, in batches, goes out."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..errors import BadInput
from ..generation import check_options, text_of
from ..models.loading import quiet
from ..models.tokens import encode, first_id
from ..training.evaluation import scoring
from .likelihood import Tick, context

AT_ONCE = 64  # texts that are sampled together


class Sample(NamedTuple):
    """A prompt and what the model wrote after it, as one text; the model's own part begins at `begin`."""

    text: str
    begin: int


def check_sampling(
    model: Any, samples: int, max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None, seed: int | None
) -> None:  # fmt: skip
    """Refuse what cannot be sampled from, or not so."""
    check_options(max_new_tokens, temperature, top_k, top_p, 1, False, seed, None)
    if samples < 1:
        raise BadInput(f"--samples must be at least 1, got {samples}")
    if not getattr(model, "can_generate", lambda: False)():
        raise BadInput(
            "the model is a classifier and writes no text, so that no secret can be drawn from what it writes"
        )


def sample(
    model: Any, tokenizer: Any, prompts: Sequence[str], *, max_new_tokens: int, temperature: float, top_k: int | None,
    top_p: float | None, coins: np.random.Generator, tick: Tick = lambda done: None,
) -> list[Sample]:  # fmt: skip
    """One continuation of each prompt, in their order; of prompts that leave no room in the context, the end is read."""
    limit, first = context(model), first_id(tokenizer)
    tokens = {prompt: encode(tokenizer, prompt) for prompt in dict.fromkeys(prompts)}
    longest = max(map(len, tokens.values()), default=0)
    room, kept = max_new_tokens, longest
    if limit is not None:
        room = min(max_new_tokens, limit - min(1 + longest, max(1, limit // 2)))
        kept = min(longest, limit - room - 1)
    ids = {prompt: [first, *own[max(0, len(own) - kept) :]] for prompt, own in tokens.items()}
    order = sorted(range(len(prompts)), key=lambda n: -len(ids[prompts[n]]))
    pad = first if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    made: dict[int, Sample] = {}
    with torch.random.fork_rng(), quiet(), scoring(model, None) as place:
        torch.manual_seed(int(coins.integers(2**63)))
        for low in range(0, len(order), AT_ONCE):
            mine = order[low : low + AT_ONCE]
            width = len(ids[prompts[mine[0]]])
            given, mask = torch.full((len(mine), width), pad), torch.zeros(len(mine), width, dtype=torch.long)
            for row, n in enumerate(mine):
                own = ids[prompts[n]]
                given[row, width - len(own) :], mask[row, width - len(own) :] = torch.tensor(own), 1
            ends = model.generation_config.eos_token_id
            written = model.generate(
                given.to(place), attention_mask=mask.to(place), max_new_tokens=room, pad_token_id=pad, do_sample=True,
                temperature=temperature, top_k=top_k or 0, top_p=top_p or 1.0, num_beams=1, repetition_penalty=1.0,
                eos_token_id=tokenizer.eos_token_id if ends is None else ends,
            )  # fmt: skip
            for n, row in zip(mine, written.tolist(), strict=True):
                made[n] = _sample(tokenizer, ids[prompts[n]], row[width:])
            tick(len(mine))
    return [made[n] for n in range(len(prompts))]


def _sample(tokenizer: Any, prompt: list[int], new: list[int]) -> Sample:
    """Decoded together, since some tokenizers swallow the space that a text begins with."""
    start, whole = (unicodedata.normalize("NFC", text_of(tokenizer, ids)) for ids in (prompt, prompt + new))
    if whole.startswith(start):
        return Sample(whole, len(start))
    return Sample(unicodedata.normalize("NFC", text_of(tokenizer, new)), 0)  # a letter was cut in two
