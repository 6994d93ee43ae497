"""Utility: a model and held-out texts come in; perplexities, bits per character and accuracies go out.

A text is scored raw and untouched, as [bos] + its tokens, and only its own tokens count: neither bos nor the end of the
text enters any number here (losses in training do include the end). Perplexity is exp(nats of the text / number of
tokens a *reference* tokenizer makes of it), whatever tokens the model has, so that models compare. These numbers show
what the texts are like: a caller who publishes them must hold out records that are public or outside the certificate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..dp.head import can_fuse, evaluating, hidden_states, parts
from ..dp.losses import IGNORED, check_labels, model_logits, rows, targets
from ..dp.rules.base import single
from ..errors import BadInput
from ..models.tokens import first_id

AT_ONCE = 2**24  # logits that exist at a time, where the head can run by itself
Spans = Sequence[tuple[int, int]]
Flags = NDArray[np.bool_]


class HeldText(Protocol):
    """A held-out text; `spans` are the characters that are secret by ground truth, None if there is none."""

    @property
    def text(self) -> str: ...
    @property
    def spans(self) -> Spans | None: ...


class TokenRows(Protocol):
    """Records that were tokenised before, read by number."""

    def batch(self, indices: Any) -> dict[str, Tensor]: ...


class _Window(NamedTuple):
    text: int
    start: int
    ids: list[int]


def evaluate(
    model: nn.Module,
    tokenizer: Any,
    held: Sequence[HeldText],
    *,
    reference: Any = None,
    max_length: int,
    batch: int = 16,
    device: torch.device | str | None = None,
) -> dict[str, Any]:
    """How well a causal language model predicts texts that it was not trained on.

    A transformer scores a text of more than `max_length` tokens in consecutive windows of `max_length`, each from a bos of
    its own, without overlap; a recurrent model reads it in one go. With ground truth, `secret` and `non_secret`
    hold the same numbers for the tokens that overlap a secret span and for the others, each perplexity over
    the reference's tokens of that kind; a token's leading space overlaps nothing. A number over no tokens is None; a
    model that gives no finite probability has infinite perplexity. `accuracy` is top-1, over the model's own tokens.
    """
    if not held:
        raise BadInput("there is no held-out text to evaluate on; hold out some records or name a validation file")
    if max_length < 1 or batch < 1:
        raise BadInput(f"max_length and batch must be at least 1, got {max_length} and {batch}")
    marked = all(one.spans is not None for one in held)
    ids, secret = _tokens(tokenizer, held, marked)
    if not any(ids):
        raise BadInput("the held-out texts hold no token: all of them are empty")
    first = first_id(tokenizer)
    with scoring(model, device) as place:
        scores = list(_score_texts(model, ids, first, max_length, batch, place))
    nats, right = (np.concatenate(part) for part in zip(*scores, strict=True))
    other = (ids, secret) if reference is None else _tokens(reference, held, marked)
    whole = _summary(nats, right, sum(map(len, other[0])))
    characters = sum(len(one.text) for one in held)
    result = {
        "texts": len(held),
        "characters": characters,
        **whole,
        "perplexity_tokens": "the model's own" if reference is None else _name(reference),
        "bits_per_character": whole["nats"] / math.log(2) / characters,
    }
    if marked:
        mine, theirs = np.concatenate(secret), np.concatenate(other[1])
        result["secret"] = _summary(nats[mine], right[mine], int(theirs.sum()))
        result["non_secret"] = _summary(nats[~mine], right[~mine], int((~theirs).sum()))
    return result


def quick(
    model: nn.Module,
    records: TokenRows,
    chosen: Sequence[int] | NDArray[Any],
    *,
    batch: int = 16,
    device: torch.device | str | None = None,
) -> dict[str, Any]:
    """Mean loss and top-1 accuracy over the targets of tokenised rows: of tokens, or of classes where labels are one per row.

    Meant for public validation records, after each epoch. Here the end of a text counts, as it does in training.
    """
    if not len(chosen):
        raise BadInput("there is no record to validate on; hold out some records or name a validation file")
    nats, right = [], []
    with scoring(model, device) as place:
        fused: bool | None = None
        for start in range(0, len(chosen), batch):
            found = records.batch(chosen[start : start + batch])
            inputs = {name: value.to(place) for name, value in found.items()}
            task = "causal" if inputs["labels"].dim() == 2 else "classify"
            goals = targets(inputs, task)
            if fused is None:
                fused = task == "causal" and can_fuse(model, rows(inputs, slice(0, 1), len(goals)))
            scored = _score(model, inputs, goals, fused)
            nats.append(scored[0])
            right.append(scored[1])
    whole = _summary(np.concatenate(nats), np.concatenate(right), 0)
    if not whole["tokens"]:
        raise BadInput("none of the records to validate on has a target; hold out others")
    return {"loss": whole["nats_per_token"], "accuracy": whole["accuracy"], "targets": whole["tokens"]}


def evaluate_classes(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[str],
    labels: Sequence[int],
    *,
    max_length: int,
    batch: int = 16,
    device: torch.device | str | None = None,
) -> dict[str, Any]:
    """Accuracy and mean loss of a classifier on texts, cut at `max_length` and framed as its tokenizer frames them."""
    if not texts or len(texts) != len(labels):
        raise BadInput(f"a classifier is evaluated on texts with a label each, got {len(texts)} and {len(labels)}")
    nats, right = [], []
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    with scoring(model, device) as place:
        for start in range(0, len(order), batch):
            mine = order[start : start + batch]
            framed = tokenizer(
                [texts[index] for index in mine],
                split_special_tokens=True,
                truncation=True,
                max_length=max_length,
                padding=True,
                return_tensors="pt",
            )
            inputs = {name: value.to(place) for name, value in framed.items()}
            goals = torch.tensor([labels[index] for index in mine], device=place)
            scored = _score(model, inputs, goals, fused=False)
            nats.append(scored[0])
            right.append(scored[1])
    whole = _summary(np.concatenate(nats), np.concatenate(right), 0)
    return {"texts": len(texts), "loss": whole["nats_per_token"], "accuracy": whole["accuracy"]}


def secret_tokens(text: str, offsets: Spans, spans: Spans) -> Flags:
    """Which tokens, given by their characters, overlap a secret span; white space before a word overlaps nothing.

    >>> secret_tokens("I am Ann.", [(0, 1), (1, 4), (4, 8), (8, 9)], [(5, 8)]).tolist()
    [False, False, True, False]
    """
    secret = np.zeros(len(text) + 1, dtype=np.int64)
    for start, end in spans:
        secret[start + 1 : end + 1] = 1
    before = np.cumsum(secret)  # how many secret characters come before each place
    flags = np.zeros(len(offsets), dtype=bool)
    for index, (start, end) in enumerate(offsets):
        word = text[start:end].lstrip()
        # White space alone is a token in its own right, secret where it lies in a secret
        flags[index] = before[end] > before[end - len(word) if word else start]
    return flags


def _tokens(tokenizer: Any, held: Sequence[HeldText], marked: bool) -> tuple[list[list[int]], list[Flags]]:
    """The tokens of each text, special ones neither added nor parsed, and which of them are secret."""
    if marked and not getattr(tokenizer, "is_fast", False):
        raise BadInput(
            "secret tokens are found by their characters, which only a fast tokenizer (tokenizer.json) knows"
        )
    found = tokenizer(
        [one.text for one in held],
        add_special_tokens=False,
        split_special_tokens=True,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_offsets_mapping=marked,
        verbose=False,
    )
    ids: list[list[int]] = found["input_ids"]
    if not marked:
        return ids, []
    return ids, [
        secret_tokens(one.text, offsets, one.spans or ())
        for one, offsets in zip(held, found["offset_mapping"], strict=True)
    ]


def _score_texts(
    model: nn.Module, ids: Sequence[list[int]], first: int, max_length: int, batch: int, place: torch.device
) -> Iterator[tuple[NDArray[np.float64], Flags]]:
    """Nats and hits of each text's tokens, in order; windows run in batches of about the same length, longest first."""
    check_vocabulary(model, max(max(one, default=0) for one in ids))
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    scores = [(np.zeros(len(one)), np.zeros(len(one), dtype=bool)) for one in ids]
    windows = [
        _Window(text, start, one[start : start + size])
        for text, one in enumerate(ids)
        for size in [max(len(one), 1) if recurrent else max_length]
        for start in range(0, len(one), size)
    ]
    windows.sort(key=lambda window: -len(window.ids))
    fused: bool | None = None
    for low in range(0, len(windows), batch):
        mine = windows[low : low + batch]
        inputs = torch.full((len(mine), len(mine[0].ids)), first)
        goals = torch.full_like(inputs, IGNORED)
        for row, window in enumerate(mine):
            inputs[row, 1 : len(window.ids)] = torch.tensor(window.ids[:-1])
            goals[row, : len(window.ids)] = torch.tensor(window.ids)
        known = {"input_ids": inputs.to(place), "attention_mask": (goals != IGNORED).long().to(place)}
        if fused is None:
            fused = can_fuse(model, rows(known, slice(0, 1), len(mine)))
        nats, right = _score(model, known, goals.to(place), fused)
        at = 0
        for window in mine:
            size = len(window.ids)
            scores[window.text][0][window.start : window.start + size] = nats[at : at + size]
            scores[window.text][1][window.start : window.start + size] = right[at : at + size]
            at += size
    yield from scores


def _score(
    model: nn.Module, inputs: dict[str, Tensor], goals: Tensor, fused: bool
) -> tuple[NDArray[np.float64], Flags]:
    """Nats and hits of every target of a batch, row by row."""
    nats, right = [], []
    for logits, goal in target_logits(model, inputs, goals, fused):
        nats.append(cross_entropy(logits, goal, reduction="none").double().cpu().numpy())
        right.append((logits.argmax(-1) == goal).cpu().numpy())
    return np.concatenate(nats), np.concatenate(right)


def target_logits(
    model: nn.Module, inputs: dict[str, Tensor], goals: Tensor, fused: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """The logits at every target of a batch, and the targets, row by row; a piece at a time where the head can run by itself."""
    chosen = goals != IGNORED
    states = (hidden_states(model, inputs) if fused else model_logits(model, inputs))[chosen]
    head: Any = parts(model)[1] if fused else nn.Identity()
    size = max(1, AT_ONCE // (len(head.weight) if fused else states.shape[-1]))
    for state, goal in zip(torch.split(states, size), torch.split(goals[chosen], size), strict=True):
        logits = single(head(state))
        check_labels(goal, logits.shape[-1])
        yield logits, goal


@contextmanager
def scoring(model: nn.Module, device: torch.device | str | None) -> Iterator[torch.device]:
    """No dropout, no gradients, and the model as it was afterwards."""
    place = torch.device(device) if device is not None else next((p.device for p in model.parameters()), None)
    with evaluating(model), torch.inference_mode():
        yield place or torch.device("cpu")


def check_vocabulary(model: nn.Module, largest: int) -> None:
    """Refuse a token id that the model has no embedding for."""
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    size = getattr(embeddings, "num_embeddings", None)
    if size is not None and largest >= size:
        raise BadInput(
            f"the tokenizer makes tokens that the model's {size:,} embeddings do not cover: model and tokenizer do not fit"
        )


def _summary(nats: NDArray[np.float64], right: Flags, reference_tokens: int) -> dict[str, Any]:
    total = float(nats.sum()) if np.isfinite(nats).all() else math.inf
    return {
        "tokens": len(nats),
        "reference_tokens": reference_tokens,
        "nats": total,
        "nats_per_token": total / len(nats) if len(nats) else None,
        "perplexity": _exp(total / reference_tokens) if reference_tokens else None,
        "accuracy": float(right.mean()) if len(right) else None,
    }


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _name(tokenizer: Any) -> str:
    """What a tokenizer is called; of a folder, only the last part, since a report may leave the house."""
    return Path(str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)).name
