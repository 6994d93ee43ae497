"""Exact exposure of canaries over a million candidates, against naive batches and a shared-prefix cache. Ratios within one run.

python benchmarks/attacks.py [--quick] [--json] [--models NAMES] [--digits N] [--rounds N] [--threads N] [--tokenizer DIR]

`tree` scores every candidate of "My ID is: {digits:6}" as the attack does, the tokens included; nothing is pruned. `naive`
runs whole texts in batches of 32 and takes log_softmax of all logits; `prefix` keeps the keys and values (or the state)
of what all texts begin with and runs the rest of each in batches of 64. Both are measured on a stated part of the
candidates, in rounds around the tree's one pass, and scaled to all of them; a ratio is that of the median round. The
`largest difference` is between the tree's and the naive scores of that part. Memory is the peak while the tree runs less
what the process held before the model was built. Weights are random; the shape is distilgpt2's, or the papers' LSTM with GPT-2's vocabulary. Digits are tokens of
their own; with `--tokenizer DIR` (GPT-2's) the same is done once more with a tokenizer that joins them. `--quick`: five
digits and few rounds.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

VOCABULARY = 50_257
TARGETS = {"distilgpt2": {"naive": 100, "prefix": 30}, "lstm": {"naive": 100}}
BATCH = {"naive": 32, "prefix": 64}  # about as many tokens at a time
GB = 2**30


def held() -> int:
    """Bytes that this process holds now; the peak is counted from here on."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def digit_tokenizer() -> Any:
    """A byte-level BPE of some words, which keeps digits apart."""
    from tokenizers import pre_tokenizers

    from confide.models.tokens import train_bpe

    made = train_bpe(["My ID is: it was all of the others and more"] * 20, 400, "")
    backend = made.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return made


def make_model(name: str) -> Any:
    import torch
    import transformers

    from confide.models.lstm import LstmConfig, LstmForCausalLM

    torch.manual_seed(0)
    if name == "lstm":
        return LstmForCausalLM(LstmConfig(vocab_size=VOCABULARY)).eval()
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=6, vocab_size=VOCABULARY)).eval()


def naive(model: Any, stem: list[int], paths: Any) -> Any:
    """As people write it: whole texts, all logits."""
    import torch

    totals = []
    for low in range(0, len(paths), BATCH["naive"]):
        ids = [stem + [token for token in path if token >= 0] for path in paths[low : low + BATCH["naive"]].tolist()]
        width = max(map(len, ids))
        whole = torch.tensor([row + [0] * (width - len(row)) for row in ids])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
        logs = model(input_ids=whole, attention_mask=mask).logits.log_softmax(-1)
        found = logs[:, :-1].gather(2, whole[:, 1:, None])[:, :, 0] * mask[:, 1:]
        totals.append(found[:, len(stem) - 1 :].double().sum(1))
    return torch.cat(totals).numpy()


def prefix(model: Any, stem: list[int], paths: Any) -> Any:
    """The stem once; its cache is copied for every batch. The last token is predicted and not run."""
    import torch

    start = model(input_ids=torch.tensor([stem]), use_cache=True)
    first = start.logits[0, -1].log_softmax(-1)
    totals = []
    for low in range(0, len(paths), BATCH["prefix"]):
        ids = torch.from_numpy(paths[low : low + BATCH["prefix"]]).long()
        kept, tokens = ids >= 0, ids.clamp_min(0)
        cache = copy.deepcopy(start.past_key_values)
        if hasattr(cache, "batch_repeat_interleave"):
            cache.batch_repeat_interleave(len(ids))
        else:
            cache.reorder_cache(torch.zeros(len(ids), dtype=torch.long))
        logs = model(input_ids=tokens[:, :-1], past_key_values=cache, use_cache=True).logits.log_softmax(-1)
        found = logs.gather(2, tokens[:, 1:, None])[:, :, 0] * kept[:, 1:]
        totals.append(first[tokens[:, 0]].double() + found.double().sum(1))
    return torch.cat(totals).numpy()


def one(name: str, digits: int, rounds: int, part: int, threads: int, folder: str | None) -> dict[str, Any]:
    """All arms of one model and tokenizer, in this process."""
    import numpy as np
    import torch

    from confide.attacks.spaces import Space, tokenise
    from confide.attacks.tree import build, score
    from confide.models.tokens import pretrained

    torch.set_num_threads(threads)
    tokenizer = pretrained(folder) if folder else digit_tokenizer()
    space = Space.of(f"My ID is: {{digits:{digits}}}")
    before = held()
    model = make_model(name)
    chosen = np.random.default_rng(0).choice(space.size, rounds * part, replace=False)
    few = tokenise(tokenizer, space, space.all_signs()[chosen])
    times: dict[str, list[float]] = {"naive": [], "prefix": []}
    scores: list[Any] = []

    def measure(number: int) -> None:
        paths = few.paths[number * part : (number + 1) * part]
        for arm in ("naive", "prefix") if number % 2 else ("prefix", "naive"):
            began = time.perf_counter()
            found = (naive if arm == "naive" else prefix)(model, few.stem, paths)
            times[arm].append((time.perf_counter() - began) / part)
            if arm == "naive":
                scores.append(found)

    with torch.inference_mode():
        naive(model, few.stem, few.paths[: BATCH["naive"]])  # warm
        for number in range(rounds // 2):
            measure(number)
        held()
        began = time.perf_counter()
        tokens = tokenise(tokenizer, space, space.all_signs())
        tree = build(*tokens)
        prepared = time.perf_counter()
        whole = score(model, tree)
        ended = time.perf_counter()
        memory = peak() - before
        for number in range(rounds // 2, rounds):
            measure(number)
    gap = whole.totals[chosen] - np.concatenate(scores)
    middle = {arm: statistics.median(found) * space.size for arm, found in times.items()}
    return {
        "candidates": space.size,
        "stem": len(tokens.stem),
        "tokens": float(tokens.lengths.mean()),
        "nodes": whole.nodes,
        "engine": whole.engine,
        "seconds": ended - began,
        "tokens and tree": prepared - began,
        "scaled from": rounds * part,
        "scaled seconds": middle,
        "ratios": {arm: seconds / (ended - began) for arm, seconds in middle.items()},
        "range": {
            arm: [edge(found) * space.size / (ended - began) for edge in (min, max)] for arm, found in times.items()
        },
        "memory GB": memory / GB,
        "largest difference": float(np.abs(gap).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", default="distilgpt2,lstm")
    parser.add_argument("--digits", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--part", type=int, help="candidates of a round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tokenizer")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "TOKENIZER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    digits = args.digits or (5 if args.quick else 6)
    rounds, part = args.rounds or (4 if args.quick else 10), args.part or (128 if args.quick else 512)
    if args.one:
        print(json.dumps(one(args.one[0], digits, rounds, part, args.threads, args.one[1] or None)))
        return
    found: dict[str, Any] = {}
    for name in args.models.split(","):
        for folder in ["", *([args.tokenizer] if args.tokenizer else [])]:
            command = [
                sys.executable,
                __file__,
                "--one",
                name,
                folder,
                "--digits",
                str(digits),
                "--rounds",
                str(rounds),
            ]
            command += ["--part", str(part), "--threads", str(args.threads)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[f"{name}, digits {'joined' if folder else 'apart'}"] = json.loads(done.stdout.splitlines()[-1])
    if args.json:
        print(json.dumps(found))
        return
    table = Table(title=f"exact exposure over 10^{digits} candidates, {args.threads} threads")
    for column in ("model", "seconds", "nodes", "naive", "prefix", "target", "GB", "difference"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, row in found.items():
        target = TARGETS[name.split(",")[0]] if name.endswith("apart") and digits == 6 else {}
        table.add_row(
            name,
            f"{row['seconds']:.1f}",
            f"{row['nodes']:,}",
            *(f"{row['ratios'][arm]:.0f}×" for arm in ("naive", "prefix")),
            ", ".join(f"{arm} {number}×" for arm, number in target.items()),
            f"{row['memory GB']:.2f}",
            f"{row['largest difference']:.1e}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
