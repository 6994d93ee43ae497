"""What a model says about rows of token ids: rows come in, nats (−log p) of each token or of a class label go out.

Every attack reads the model through these functions. A row begins with bos, which is read and never predicted. Rows run
in batches of about the same length, padded at the end, and logits are made a piece at a time where the head can run by
itself; neither changes a number beyond rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..dp.head import can_fuse
from ..dp.losses import IGNORED, check_labels, model_logits
from ..dp.losses import rows as some_rows
from ..dp.rules.base import single
from ..errors import BadInput
from ..models.loading import longest
from ..models.tokens import encode, first_id
from ..training.evaluation import AT_ONCE, check_vocabulary, scoring, target_logits
from .statistics import Floats

TOKENS_AT_ONCE = 4096  # positions of a batch, padding among them
FLAT = 1e-5  # a spread of log-probabilities below this is rounding

Tick = Callable[[int], object]


class Row(NamedTuple):
    """Token ids, of which the first is bos; `target` says which of them count (the first never does), None: all others."""

    ids: Sequence[int]
    target: Sequence[bool] | None = None


class Scored(NamedTuple):
    """Of each target token of a row: −log p, and on request its standardised log p."""

    nats: Floats
    z: Floats | None


def text_row(tokenizer: Any, text: str) -> Row:
    """A text as the model was trained to read it: [bos] + its tokens, without an end."""
    return Row([first_id(tokenizer), *encode(tokenizer, text)])


def score_rows(
    model: Any, rows: Sequence[Row], *, standardised: bool = False, tick: Tick = lambda done: None
) -> list[Scored]:
    """The nats of every row's target tokens, rows in the order in which they came.

    With `standardised`, `z` is (log p − μ)/σ, where μ and σ are the mean and the standard deviation of log p over the
    model's own next-token distribution (what Min-K%++ averages); a token that is predicted by a uniform distribution,
    where σ is 0, has z = 0. A token of probability 0 has infinite nats. `tick` is called with the rows done since the
    last call. Refused are rows longer than the model's context: cutting them would change what is scored.
    """
    check_rows(model, rows)
    counted = [_targets(row) for row in rows]
    empty = np.zeros(0)
    scores = [Scored(empty, empty if standardised else None) for _ in rows]
    order = sorted((n for n, goals in enumerate(counted) if goals.any()), key=lambda n: -len(rows[n].ids))
    tick(len(rows) - len(order))
    with scoring(model, None) as place:
        fused = bool(order) and _fuses(model, rows[order[0]], place)
        for mine in _batches(order, rows, TOKENS_AT_ONCE if fused else _narrow(model)):
            inputs, goals = _padded([rows[n].ids for n in mine], [counted[n] for n in mine], place)
            nats, z = _score(model, inputs, goals, fused, standardised)
            sizes = [int(counted[n].sum()) for n in mine]
            for n, end, size in zip(mine, np.cumsum(sizes), sizes, strict=True):
                part = slice(end - size, end)
                scores[n] = Scored(nats[part], None if z is None else z[part])
            tick(len(mine))
    return scores


def log_likelihoods(model: Any, rows: Sequence[Row], *, tick: Tick = lambda done: None) -> Floats:
    """log p of every row's target tokens together: the total, never divided by a length."""
    return np.array([-one.nats.sum() for one in score_rows(model, rows, tick=tick)], dtype=np.float64)


def score_classes(model: Any, rows: Sequence[Row], labels: Sequence[int], *, tick: Tick = lambda done: None) -> Floats:
    """−log p of each row's label under a classifier; `ids` are framed as its tokenizer frames them, targets mean nothing."""
    if len(rows) != len(labels):
        raise BadInput(f"a classifier is scored on rows with a label each, got {len(rows)} and {len(labels)}")
    if any(not len(row.ids) for row in rows):
        raise BadInput("a row for the classifier holds no token; leave it out or frame it")
    check_rows(model, rows, shift=0)
    nats = np.zeros(len(rows))
    order = sorted(range(len(rows)), key=lambda n: -len(rows[n].ids))
    # GPT-2 and its like find a row's last token by the padding id; without one they read a row at a time
    pad = getattr(getattr(model, "config", None), "pad_token_id", None)
    with scoring(model, None) as place:
        for mine in _batches(order, rows, TOKENS_AT_ONCE if pad is not None else 1):
            width = max(len(rows[n].ids) for n in mine)
            ids, mask = torch.full((len(mine), width), pad or 0), torch.zeros(len(mine), width, dtype=torch.long)
            for at, n in enumerate(mine):
                ids[at, : len(rows[n].ids)] = torch.as_tensor(rows[n].ids)
                mask[at, : len(rows[n].ids)] = 1
            goals = torch.tensor([labels[n] for n in mine], device=place)
            logits = single(model_logits(model, {"input_ids": ids.to(place), "attention_mask": mask.to(place)}))
            check_labels(goals, logits.shape[-1])
            nats[mine] = _of_targets(logits, goals, standardised=False)[0]
            tick(len(mine))
    return nats


def context(model: Any) -> int | None:
    """How many tokens the model reads at most; None for a recurrent model and one that does not say."""
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return None
    return longest(model) if getattr(model, "config", None) is not None else None


def check_rows(model: Any, rows: Sequence[Row], *, shift: int = 1) -> None:
    """Refuse rows that the model cannot read; of a causal model's row the last token (`shift`) is predicted and not read."""
    for row in rows:
        if row.target is not None and len(row.target) != len(row.ids):
            raise BadInput(f"a row of {len(row.ids)} tokens marks {len(row.target)} of them as target or not")
        if shift and not len(row.ids):
            raise BadInput("a row holds no token, not even the bos that it begins with; make rows with text_row")
    most, limit = max((len(row.ids) for row in rows), default=0) - shift, context(model)
    if limit is not None and most > limit:
        raise BadInput(
            f"a row of {most + shift:,} tokens does not fit the model's context of {limit:,}; leave it out or cut it "
            "into pieces as training did"
        )
    check_vocabulary(model, max((max(row.ids, default=0) for row in rows), default=0))


def _targets(row: Row) -> NDArray[np.bool_]:
    chosen = np.ones(len(row.ids), dtype=bool) if row.target is None else np.array(row.target, dtype=bool)
    chosen[0] = False
    return chosen


def _batches(order: Sequence[int], rows: Sequence[Row], tokens: int) -> Iterator[list[int]]:
    """Numbers of rows, longest first, so that a batch holds at most `tokens` positions, or one row."""
    batch: list[int] = []
    for n in order:
        width = len(rows[batch[0]].ids) if batch else 0
        if batch and (len(batch) + 1) * width > tokens:
            yield batch
            batch = []
        batch.append(n)
    if batch:
        yield batch


def _narrow(model: Any) -> int:
    """How many positions a batch may have where all of its logits exist at a time."""
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    return max(1, min(TOKENS_AT_ONCE, AT_ONCE // int(vocabulary or 50_000)))


def _padded(
    ids: Sequence[Sequence[int]], counted: Sequence[NDArray[np.bool_]], place: torch.device
) -> tuple[dict[str, Tensor], Tensor]:
    """Inputs without each row's last token, and at every place the id that comes next if it counts."""
    width = max(map(len, ids)) - 1
    inputs = torch.full((len(ids), width), int(ids[0][0]))
    mask, goals = torch.zeros_like(inputs), torch.full_like(inputs, IGNORED)
    for at, (row, chosen) in enumerate(zip(ids, counted, strict=True)):
        whole = torch.as_tensor(row)
        inputs[at, : len(row) - 1] = whole[:-1]
        mask[at, : len(row) - 1] = 1
        goals[at, : len(row) - 1] = whole[1:].masked_fill(torch.from_numpy(~chosen[1:]), IGNORED)
    return {"input_ids": inputs.to(place), "attention_mask": mask.to(place)}, goals.to(place)


def _fuses(model: Any, row: Row, place: torch.device) -> bool:
    inputs, _ = _padded([row.ids], [_targets(row)], place)
    few = {name: value[:, :64] for name, value in inputs.items()}  # enough to compare, whatever the vocabulary
    return can_fuse(model, some_rows(few, slice(0, 1), 1))


def _score(
    model: Any, inputs: dict[str, Tensor], goals: Tensor, fused: bool, standardised: bool
) -> tuple[Floats, Floats | None]:
    """Nats, and z if asked for, of every target of a batch, row by row."""
    scored = [_of_targets(*some, standardised) for some in target_logits(model, inputs, goals, fused)]
    nats = np.concatenate([one[0] for one in scored])
    return nats, np.concatenate([one[1] for one in scored if one[1] is not None]) if standardised else None


def _of_targets(logits: Tensor, goals: Tensor, standardised: bool) -> tuple[Floats, Floats | None]:
    logs = logits.log_softmax(-1)
    own = logs.gather(-1, goals[:, None])[:, 0].double()
    nats = (-own).cpu().numpy()
    if np.isnan(nats).any():
        raise BadInput("the model's output is not a number: its weights are damaged, and there is nothing to attack")
    if not standardised:
        return nats, None
    chances = logs.exp()
    known = logs.masked_fill(chances == 0, 0.0)  # 0·log 0 = 0
    mean = (chances * known).sum(-1)
    spread = (chances * (known - mean[:, None]).square()).sum(-1).double().sqrt()
    z = torch.where(spread > FLAT, (own - mean.double()) / spread.clamp_min(FLAT), torch.zeros_like(spread))
    return nats, z.cpu().numpy()
