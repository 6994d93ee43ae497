"""A tree of token sequences: candidates that begin alike share the work. Token ids come in, log-likelihoods go out.

A node is a beginning of some candidates; the model sees every node that has children once, and the leaves never: their
probability is read off their parent. A transformer sees many nodes in one row, each attending to its own beginning only
(tree attention); an LSTM carries its state from node to node. Where neither gives the scores that plain rows give, plain
rows are scored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..dp.head import can_fuse, parts
from ..errors import BadInput
from ..models.lstm import LstmForCausalLM, LstmState
from ..training.evaluation import check_vocabulary, scoring
from .likelihood import Row, Tick, context, score_rows
from .statistics import Floats, Ints

WIDTH = 256  # nodes of a packed row: wider repeats fewer ancestors and attends to more
NODES = 1024  # nodes whose distributions are made at a time
VOCABULARY = 4096  # logits of so many tokens at a time, so that they stay in the cache; NODES·VOCABULARY ≤ 2^24
PLAIN = 4096  # rows scored at a time
PROBES = 12  # candidates whose scores are compared with plain ones
AGREE = 1e-4  # nats
SAFE = 60.0  # logits below it need no shift: e^60·V is far from the end of single precision


@dataclass(frozen=True)
class Tree:
    """Levels of nodes, ordered by parent and token; level 0 is the stem alone. A candidate ends in one node.

    Children of node i are `first[level][i]` up to `first[level][i + 1]` on the next level.
    """

    stem: tuple[int, ...]
    tokens: list[Ints]
    parents: list[Ints]
    first: list[Ints]
    end_levels: Ints
    end_nodes: Ints

    @property
    def candidates(self) -> int:
        return len(self.end_levels)

    @property
    def inner(self) -> int:
        """How many nodes the model has to see."""
        return sum(int((np.diff(first) > 0).sum()) for first in self.first)

    def path(self, candidate: int) -> list[int]:
        """The tokens of a candidate after the stem."""
        node, tokens = int(self.end_nodes[candidate]), []
        for level in range(int(self.end_levels[candidate]), 0, -1):
            tokens.append(int(self.tokens[level][node]))
            node = int(self.parents[level][node])
        return tokens[::-1]

    def row(self, candidate: int) -> Row:
        """A candidate as a plain row, of which the tokens after the stem count."""
        path = self.path(candidate)
        return Row([*self.stem, *path], [False] * len(self.stem) + [True] * len(path))

    def children(self, level: int, nodes: Ints) -> tuple[Ints, Ints]:
        """The children of some nodes, on the next level, and for each the place of its parent among `nodes`."""
        begin, number = self.first[level][nodes], self.first[level][nodes + 1] - self.first[level][nodes]
        owner = np.repeat(np.arange(len(nodes)), number)
        return np.arange(len(owner)) - np.repeat(np.cumsum(number) - number, number) + begin[owner], owner

    def has_children(self, level: int, nodes: Ints) -> NDArray[np.bool_]:
        if level >= len(self.first):
            return np.zeros(len(nodes), dtype=bool)
        return self.first[level][nodes + 1] > self.first[level][nodes]


class ScoredTree(NamedTuple):
    """Log-likelihoods of the candidates (−inf: below the floor), how they were made, and how many nodes the model saw."""

    totals: Floats
    engine: str
    nodes: int


def build(stem: Sequence[int], paths: NDArray[Any], lengths: NDArray[Any]) -> Tree:
    """The tree of candidates: row i of `paths` holds `lengths[i]` tokens after the stem, and −1 behind them."""
    order = np.lexsort(paths.T[::-1]) if paths.shape[1] else np.arange(len(paths))
    ordered, ends = paths[order], np.asarray(lengths)[order]
    if len(ordered) > 1 and bool((ordered[1:] == ordered[:-1]).all(1).any()):
        raise BadInput(
            "the tokenizer turns different candidates into the same tokens (as one without digits does), so that no "
            "model could tell them apart; take another tokenizer or another format"
        )
    new = np.zeros(len(ordered), dtype=bool)
    new[:1] = True
    place = np.zeros(len(ordered), dtype=np.int64)
    tokens, parents, first = [np.array(stem[-1:], dtype=np.int64)], [np.zeros(1, dtype=np.int64)], []
    end_nodes = np.zeros(len(ordered), dtype=np.int64)
    for column in range(paths.shape[1]):
        new[1:] |= ordered[1:, column] != ordered[:-1, column]
        begin = np.flatnonzero(new & (ends > column))
        tokens.append(ordered[begin, column].astype(np.int64))
        parents.append(place[begin])
        first.append(np.searchsorted(parents[-1], np.arange(len(tokens[-2]) + 1)).astype(np.int64))
        counted = np.zeros(len(ordered), dtype=np.int64)
        counted[begin] = 1
        place = np.cumsum(counted) - 1
        end_nodes[ends == column + 1] = place[ends == column + 1]
    levels, nodes = np.empty(len(order), dtype=np.int64), np.empty(len(order), dtype=np.int64)
    levels[order], nodes[order] = ends, end_nodes
    return Tree(tuple(stem), tokens, parents, first, levels, nodes)


def score(model: Any, tree: Tree, *, floor: float = -math.inf, tick: Tick = lambda done: None) -> ScoredTree:
    """The log-likelihood of every candidate's tokens after the stem, those below `floor` left out as −inf.

    `tick` is told how many nodes (or, for plain rows, candidates) were done since it was last called.

    *Formal guarantees.* Log-probabilities only fall along a path, so that no candidate at or above the floor is left
    out: the number of candidates above any score that is at least the floor is exact. Scores are compared with those of
    plain rows before and after, for a few candidates; if they differ, all come from plain rows.
    """
    check_fits(model, tree)
    chosen = np.unique(np.linspace(0, tree.candidates - 1, PROBES).astype(np.int64))
    with scoring(model, None) as place:
        known = _plain(model, tree, chosen)
        engine = _engine(model, tree, place)
        if engine is not None and _agrees(engine, model, tree, chosen, known):
            levels, nodes = engine(model, tree, floor, tick)
            totals = _totals(tree, levels)
            seen = totals[chosen] > -math.inf
            if _close(totals[chosen][seen], known[seen]) and bool((known[~seen] < floor + AGREE).all()):
                return ScoredTree(totals, "states" if engine is _by_states else "packed", nodes)
        return ScoredTree(_plain(model, tree, np.arange(tree.candidates), tick), "plain", tree.candidates)


def check_fits(model: Any, tree: Tree) -> None:
    """Refuse candidates that the model cannot see as a whole, or whose tokens it does not know."""
    tokens, most = len(tree.stem) + len(tree.first), context(model)
    if most is not None and tokens > most:
        raise BadInput(
            f"a canary takes {tokens} tokens with what stands before it, and the model sees {most}: shorten the format, "
            "or attack a model with a longer context"
        )
    check_vocabulary(model, max(max(tree.stem), max(int(level.max(initial=0)) for level in tree.tokens)))


def _engine(model: Any, tree: Tree, place: torch.device) -> Callable[..., tuple[list[Floats], int]] | None:
    if isinstance(model, LstmForCausalLM):
        return _by_states
    stem = torch.tensor([tree.stem], device=place)
    try:
        return _packed if can_fuse(model, {"input_ids": stem, "attention_mask": torch.ones_like(stem)}) else None
    except Exception:  # models of others fail in ways of their own; plain rows tell
        return None


def _agrees(
    engine: Callable[..., tuple[list[Floats], int]], model: Any, tree: Tree, chosen: Ints, known: Floats
) -> bool:
    """Whether the engine gives the same scores as plain rows, on a tree of the chosen candidates alone."""
    paths = [tree.path(int(i)) for i in chosen]
    table = np.full((len(paths), max(map(len, paths))), -1)
    for row, path in zip(table, paths, strict=True):
        row[: len(path)] = path
    small = build(tree.stem, table, np.array([len(path) for path in paths]))
    try:
        levels, _ = engine(model, small, -math.inf, lambda done: None)
    except Exception:  # a model that takes no such mask or positions says so in its own way
        return False
    return _close(_totals(small, levels), known)


def _close(found: Floats, known: Floats) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(((found == known) | (np.abs(found - known) <= AGREE)).all())


def _totals(tree: Tree, levels: list[Floats]) -> Floats:
    totals = np.empty(tree.candidates)
    for level, values in enumerate(levels):
        mine = tree.end_levels == level
        totals[mine] = values[tree.end_nodes[mine]]
    return totals


def _plain(model: Any, tree: Tree, chosen: Ints, tick: Tick = lambda done: None) -> Floats:
    totals = np.empty(len(chosen))
    for start in range(0, len(chosen), PLAIN):
        rows = [tree.row(int(i)) for i in chosen[start : start + PLAIN]]
        totals[start : start + len(rows)] = [-one.nats.sum() for one in score_rows(model, rows)]
        tick(len(rows))
    return totals


def _grow(
    tree: Tree, levels: list[Floats], floor: float, level: int, nodes: Ints, hidden: Tensor, head: nn.Linear
) -> tuple[Ints, Ints]:
    """Score the children of nodes whose hidden states are known; those that must grow further, and their parents' places."""
    children, owner = tree.children(level, nodes)
    tokens = torch.from_numpy(tree.tokens[level + 1][children]).to(hidden.device)
    found = log_probabilities(head, hidden, torch.from_numpy(owner).to(hidden.device), tokens)
    scores = levels[level][nodes][owner] + found.cpu().numpy()
    scores[~(scores >= floor)] = -math.inf
    levels[level + 1][children] = scores
    alive = tree.has_children(level + 1, children) & (scores > -math.inf)
    return children[alive], owner[alive]


def _blank(tree: Tree) -> list[Floats]:
    return [np.zeros(1)] + [np.full(len(tokens), -math.inf) for tokens in tree.tokens[1:]]


# -- the head ----------------------------------------------------------------------------------------------------------


def log_probabilities(head: nn.Linear, hidden: Tensor, owner: Tensor, tokens: Tensor) -> Tensor:
    """log p of each token after the position whose hidden state is `hidden[owner]`, in double precision."""
    found = torch.empty(len(tokens), dtype=torch.float64, device=hidden.device)
    distinct, which = torch.unique(tokens, return_inverse=True)
    weight, bias = head.weight[distinct], None if head.bias is None else head.bias[distinct]
    size = max(1, min(NODES, NODES * VOCABULARY // max(1, len(distinct))))
    borders = torch.searchsorted(owner, torch.arange(0, len(hidden) + size, size, device=owner.device)).tolist()
    for number, (low, high) in enumerate(itertools.pairwise(borders)):
        states = hidden[number * size : (number + 1) * size]
        mine = owner[low:high] - number * size
        logits = nn.functional.linear(states, weight, bias)
        found[low:high] = logits[mine, which[low:high]].double() - _normaliser(head, states)[mine]
    return found


def _normaliser(head: nn.Linear, states: Tensor) -> Tensor:
    """log Σ e^logit over the vocabulary, a slice of it at a time, in place: logits are never kept."""
    bias = head.bias
    bound = states.norm(dim=1).max() * head.weight.norm(dim=1).max() + (0 if bias is None else bias.abs().max())
    small = states.dtype == torch.float32 and bool(bound < SAFE)
    total = torch.zeros(len(states), dtype=torch.float64, device=states.device)
    peak = torch.zeros_like(total) if small else torch.full_like(total, -math.inf)
    for low in range(0, len(head.weight), VOCABULARY):
        part = slice(low, low + VOCABULARY)
        logits = nn.functional.linear(states, head.weight[part], None if bias is None else bias[part]).float()
        if not small:
            higher = torch.maximum(peak, logits.amax(1).double())
            total *= (peak - higher).exp()
            peak = higher
            logits -= peak[:, None].float()
        total += logits.exp_().sum(1).double()
    return total.log() + peak


# -- the LSTM: states --------------------------------------------------------------------------------------------------


def _by_states(model: Any, tree: Tree, floor: float, tick: Tick) -> tuple[list[Floats], int]:
    """Depth first, so that only the states on the way to the present nodes are kept."""
    body, head = parts(model)
    levels, seen = _blank(tree), 0
    place = head.weight.device
    start = LstmState(*(torch.zeros(body.lstm.num_layers, 1, body.lstm.hidden_size, device=place),) * 2, 0)
    waiting = [(0, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), start)] if tree.first else []
    while waiting:
        level, nodes, owner, before = waiting.pop()
        ids = torch.from_numpy(tree.tokens[level][nodes])[:, None] if level else torch.tensor([tree.stem])
        chosen = torch.from_numpy(owner).to(place)
        state = LstmState(before.h.index_select(1, chosen), before.c.index_select(1, chosen), 0)
        output = body(ids.to(place), past_key_values=state, use_cache=True)
        grown, parents = _grow(tree, levels, floor, level, nodes, output[0][:, -1], head)
        for low in reversed(range(0, len(grown), NODES)):
            piece = slice(low, low + NODES)
            waiting.append((level + 1, grown[piece], parents[piece], output.past_key_values))
        seen += len(nodes)
        tick(len(nodes))
    return levels, seen


# -- transformers: packed rows -----------------------------------------------------------------------------------------


class _Packed(NamedTuple):
    ids: Ints
    positions: Ints
    attends: NDArray[np.bool_]
    nodes: Ints  # those to be scored, at the end of the row


def _packed(model: Any, tree: Tree, floor: float, tick: Tick) -> tuple[list[Floats], int]:
    """Level after level, so that nodes below the floor are known before their children would be seen."""
    body, head = parts(model)
    levels, seen = _blank(tree), 0
    width = max(len(tree.stem) + len(tree.first), min(WIDTH + len(tree.stem), context(model) or WIDTH))
    alive = np.zeros(1 if tree.first else 0, dtype=np.int64)
    for level in range(len(tree.first)):
        grown: list[Ints] = []
        rows: list[_Packed] = []
        for piece in _pieces(tree, level, alive, width):
            rows.append(_row(tree, level, piece))
            if len(rows) * width >= NODES or piece[-1] == alive[-1]:
                nodes = np.concatenate([row.nodes for row in rows])
                hidden = _hidden(body, head, rows)
                grown.append(_grow(tree, levels, floor, level, nodes, hidden, head)[0])
                rows, seen = [], seen + len(nodes)
                tick(len(nodes))
        alive = np.concatenate(grown) if grown else alive[:0]
    return levels, seen


def _pieces(tree: Tree, level: int, nodes: Ints, width: int) -> Iterator[Ints]:
    """Consecutive nodes that fit into a row together with their ancestors."""
    cost, ancestors = np.ones(len(nodes), dtype=np.int64), nodes
    for above in range(level, 1, -1):
        ancestors = tree.parents[above][ancestors]
        cost[1:] += ancestors[1:] != ancestors[:-1]
    total = np.cumsum(cost)
    low = 0
    while low < len(nodes):
        left = width - len(tree.stem) - max(0, level - 1) - 1  # after the first node and its ancestors
        high = max(low + 1, int(np.searchsorted(total, total[low] + left, side="right")))
        yield nodes[low:high]
        low = high


def _row(tree: Tree, level: int, nodes: Ints) -> _Packed:
    """The stem, the ancestors level by level, the nodes; each attends to itself and to what its parent attends to."""
    by_level = [nodes]
    for above in range(level, 1, -1):
        ancestors = tree.parents[above][by_level[0]]
        by_level.insert(0, ancestors[np.r_[True, ancestors[1:] != ancestors[:-1]]])
    stem = len(tree.stem)
    size = stem + (sum(map(len, by_level)) if level else 0)
    ids, positions = np.empty(size, dtype=np.int64), np.arange(size)
    attends = np.zeros((size, size), dtype=bool)
    ids[:stem], attends[:stem, :stem] = tree.stem, np.tri(stem, dtype=bool)
    before, begin, low = np.zeros(1, dtype=np.int64), stem - 1, stem
    for depth, mine in enumerate(by_level if level else [], start=1):
        high = low + len(mine)
        ids[low:high], positions[low:high] = tree.tokens[depth][mine], stem - 1 + depth
        attends[low:high] = attends[begin + np.searchsorted(before, tree.parents[depth][mine])]
        attends[np.arange(low, high), np.arange(low, high)] = True
        before, begin, low = mine, low, high
    return _Packed(ids, positions, attends, nodes)


def _hidden(body: Any, head: nn.Linear, rows: list[_Packed]) -> Tensor:
    """Hidden states of the nodes of some rows, one after another. Padding attends to itself."""
    widest = max(len(row.ids) for row in rows)
    ids, positions = torch.zeros(len(rows), widest, dtype=torch.long), torch.zeros(len(rows), widest, dtype=torch.long)
    attends = torch.eye(widest, dtype=torch.bool).repeat(len(rows), 1, 1)
    wanted = torch.zeros(len(rows), widest, dtype=torch.bool)
    for i, row in enumerate(rows):
        size = len(row.ids)
        ids[i, :size], positions[i, :size] = torch.from_numpy(row.ids), torch.from_numpy(row.positions)
        attends[i, :size, :size] = torch.from_numpy(row.attends)
        wanted[i, size - len(row.nodes) : size] = True
    place, kind = head.weight.device, head.weight.dtype
    mask = torch.zeros(attends.shape, dtype=kind).masked_fill_(~attends, torch.finfo(kind).min)[:, None]
    output = body(
        input_ids=ids.to(place), attention_mask=mask.to(place), position_ids=positions.to(place), use_cache=False
    )
    hidden: Tensor = output[0][wanted.to(place)]
    return hidden
