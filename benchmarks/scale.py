"""What a gigabyte of screening and a million tokens of training cost here, and how it grows. Prints Markdown tables.

python benchmarks/scale.py [--quick] [--json] [--only screen|train]

Screening: simulated dialogues are repeated up to a size and screened by `confide screen` in a process of its own, into turns
with `allowlist`; core time is that of all its processes, start included, memory the peak of the main process and of its largest worker. Training: private steps (forward, backward,
clipping, noise, AdamW) of models with random weights on random tokens, each in a process of its own; the median of the steps after
the first, which is checked against autograd; memory is the peak of the process. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

Numbers = dict[str, Any]
PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
SIZES = {"patterns": (10, 30, 100, 300), "pii": (0.3, 1, 3)}  # MB
QUICK = {"patterns": (1, 3, 10), "pii": (0.1, 0.2)}
LENGTH = 128  # tokens of a record
SHAPES: dict[str, tuple[str, dict[str, int], int, int]] = {  # family, sizes, records of a step, LoRA's rank (0: in full)
    "LSTM 1×200, V=8,192": ("lstm", {"vocab_size": 8192}, 64, 0),
    "LSTM 1×400, V=8,192": ("lstm", {"vocab_size": 8192, "hidden_size": 400, "embedding_size": 400}, 64, 0),
    "GPT-2 4×128, V=8,192": ("gpt2", {"vocab_size": 8192, "n_layer": 4, "n_embd": 128, "n_head": 4}, 64, 0),
    "GPT-2 4×256, V=8,192": ("gpt2", {"vocab_size": 8192, "n_layer": 4, "n_embd": 256, "n_head": 4}, 32, 0),
    "distilgpt2's shape, 6×768, V=50,257": ("gpt2", {"vocab_size": 50257, "n_layer": 6, "n_embd": 768, "n_head": 12}, 8, 0),
    "Llama 8×512, V=32,000, LoRA 8": ("llama", {"num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1376}, 8, 8),
    "Llama 16×1024, V=32,000, LoRA 8": ("llama", {"num_hidden_layers": 16, "hidden_size": 1024, "intermediate_size": 2752}, 8, 8),
}  # fmt: skip
IN_BRIEF = ("LSTM 1×200, V=8,192", "GPT-2 4×128, V=8,192", "Llama 8×512, V=32,000, LoRA 8")


def screen(policy: str, megabytes: float) -> Numbers:
    """One screening, in this process and its workers."""
    from confide.experiments.customersim import dialogues, people
    from confide.screening import screen

    texts = [dialogue.text for dialogue in dialogues(500, crowd=people(0, 300))]
    with tempfile.TemporaryDirectory() as folder:
        path, written = Path(folder) / "corpus.jsonl", 0
        with open(path, "w") as file:
            for text in itertools.cycle(texts):
                if written >= megabytes * 1e6:
                    break
                written += len(text.encode())
                file.write(json.dumps({"text": text}) + "\n")
        began, used = time.perf_counter(), core_seconds()
        screen(str(path), policy, Path(folder) / "screened", unit="turn", conservative="allowlist")
        seconds, used = time.perf_counter() - began, core_seconds() - used
    main, worker = (resource.getrusage(who).ru_maxrss / 1024 for who in PROCESSES)
    return {"policy": policy, "megabytes": written / 1e6, "seconds": seconds, "core_hours_per_gb": used / written * 1e9 / 3600,
            "main_mb": main, "worker_mb": worker, "workers": os.cpu_count()}  # fmt: skip


def core_seconds() -> float:
    """Time on a core, of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in PROCESSES]
    return sum(one.ru_utime + one.ru_stime for one in used)


def train(name: str, steps: int) -> Numbers:
    """Private steps of one shape, in this process."""
    import torch

    from confide.dp import Plan, PrivateGradients, keep_memory

    keep_memory()
    family, sizes, batch, rank = SHAPES[name]
    model = _model(family, sizes, rank).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    plan = Plan(records=batch, sampling_rate=1.0, steps=steps, noise_multiplier=1.0)
    private = PrivateGradients(model, plan, task="causal")
    optimizer = torch.optim.AdamW(trained, fused=True)
    tokens = torch.randint(0, model.config.vocab_size, (batch, LENGTH))
    times, used = [], []
    for step in plan.run():
        began, before = time.perf_counter(), time.process_time()
        for rows in step.microbatches(batch):
            private.accumulate({"input_ids": tokens[rows], "labels": tokens[rows]})
        private.release(step)
        optimizer.step()
        times.append(time.perf_counter() - began)
        used.append(time.process_time() - before)
    seconds, cores = statistics.median(times[1:]), statistics.median(used[1:])
    return {
        "model": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "trained": sum(p.numel() for p in trained),
        "tokens_per_second": batch * LENGTH / seconds,
        "core_hours_per_million_tokens": cores / (batch * LENGTH) * 1e6 / 3600,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _model(family: str, sizes: dict[str, int], rank: int) -> Any:
    if family == "lstm":
        from confide.models import LstmConfig, LstmForCausalLM

        return LstmForCausalLM(LstmConfig(**sizes))
    if family == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        return GPT2LMHeadModel(
            GPT2Config(
                n_positions=LENGTH, bos_token_id=0, eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **sizes
            )
        )
    import peft
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=32000, num_attention_heads=8, max_position_embeddings=LENGTH, **sizes)
    )
    return peft.get_peft_model(model, peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "v_proj"]))


def apart(*arguments: str) -> Numbers:
    done = subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def show(found: dict[str, list[Numbers]]) -> None:
    if found.get("screen"):
        print(
            "| policy | text, MB | seconds | core hours a GB | memory, MB: main, each worker |\n|---|---|---|---|---|"
        )
        for one in found["screen"]:
            print(f"| `{one['policy']}` | {one['megabytes']:,.3g} | {one['seconds']:,.1f} | {one['core_hours_per_gb']:.3g} | "
                  f"{one['main_mb']:,.0f}, {one['worker_mb']:,.0f} |")  # fmt: skip
        print()
    if found.get("train"):
        print(
            "| model | parameters, trained, million | tokens a second | core hours a million tokens | memory, MB |\n|---|---|---|---|---|"
        )
        for one in found["train"]:
            print(f"| {one['model']} | {one['parameters'] / 1e6:.3g}, {one['trained'] / 1e6:.3g} | {one['tokens_per_second']:,.0f} | "
                  f"{one['core_hours_per_million_tokens']:.3g} | {one['memory_mb']:,.0f} |")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, few steps")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=("screen", "train"))
    parser.add_argument("--one", nargs=3, metavar=("PART", "NAME", "SIZE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        part, name, size = given.one
        print(json.dumps(screen(name, float(size)) if part == "screen" else train(name, int(size))))
        return
    found: dict[str, list[Numbers]] = {}
    if given.only != "train":
        sizes = QUICK if given.quick else SIZES
        found["screen"] = [apart("--one", "screen", policy, str(size)) for policy in sizes for size in sizes[policy]]
    if given.only != "screen":
        steps = "3" if given.quick else "8"
        found["train"] = [apart("--one", "train", name, steps) for name in (IN_BRIEF if given.quick else SHAPES)]
    if given.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
