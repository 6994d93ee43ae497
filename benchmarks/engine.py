"""One private training step against plain training and against other private engines. Ratios within one run.

python benchmarks/engine.py [--quick] [--json] [--models NAMES] [--rounds N] [--no-peers | --all-peers] [--keep-memory]
python benchmarks/engine.py --noise [--json]
python benchmarks/engine.py --profile MODEL [--arm ARM]

A step is forward, backward, noise, AdamW and zero_grad. `plain` is the loop as people write it; `strongest` is plain
training with all that `confide` uses and plain training can use too: fused AdamW, a fused language-model head with its product
by oneDNN, and an allocator that keeps its memory. Every arm lives in a process of its own. In every round each arm makes the same number
of steps, in random order, while the others sleep; a ratio is the median over rounds of two times of the same round.
Memory is the peak while stepping less what the process held before the model was built. All private arms clip the
same loss (the mean over a record's tokens) to norm 1, add noise of multiplier 1 and use fused AdamW. The peers get
what they need to run and to be fast: Linear for Conv1D, position ids by record, DPLSTM, untied weights for ghost
clipping, an initial state for vmap's LSTM. `--keep-memory` gives the allocator to all arms. On a machine that others
use too, set OMP_WAIT_POLICY=PASSIVE: threads that spin for a core that is taken distort every arm's time.

`--noise` adds noise to 16 million numbers: the compiled loops, torch in their place, and torch's own normal_ (which is not from
secret coins and not on a lattice).

NAMES are models or groups of them; a model's sizes can be changed: gpt2-small:B8:T512 (Batch, T tokens, Vocabulary).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Numbers = dict[str, Any]
Batch = tuple[Tensor, Tensor]  # token ids [B, T] and, for a classifier, labels [B]
Made = tuple[Any, Callable[[], object]]  # an optimizer, and what leaves the gradients of one step for it
Arms = dict[str, Callable[["Shape"], Made]]


@dataclass(frozen=True)
class Shape:
    family: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    length: int
    batch: int


SHAPES = {
    "gpt2-small": Shape("gpt2", 8192, 256, 4, 4, 128, 32),
    "distilgpt2": Shape("gpt2", 50257, 768, 6, 12, 128, 8),
    "lstm": Shape("lstm", 8192, 200, 1, 1, 64, 32),
    "lstm-50k": Shape("lstm", 50257, 200, 1, 1, 64, 32),
    "minilm": Shape("bert", 30522, 384, 6, 12, 64, 32),
    "llama-lora": Shape("llama", 8192, 512, 8, 8, 128, 8),
}
GROUPS = {
    "main": ["gpt2-small", "distilgpt2", "lstm:T64", "lstm:T128"],
    "more": ["lstm-50k", "minilm", "llama-lora", "gpt2-small:T512:B8"],
    "sweep": [f"gpt2-small:{change}" for change in ("B8", "B16", "B32", "B64", "T32", "T64", "T256")],
    "quick": ["gpt2-small:B8:T32:V1024", "lstm:B8:T32:V1024"],
}


def shape_of(name: str) -> Shape:
    base, *changes = name.split(":")
    fields = {"B": "batch", "T": "length", "V": "vocabulary"}
    sizes: Numbers = {fields[change[0]]: int(change[1:]) for change in changes}
    return replace(SHAPES[base], **sizes)


def tiny(shape: Shape) -> Shape:
    return replace(shape, vocabulary=64, width=16 * shape.heads, layers=1, length=8, batch=3)


class Started(nn.LSTM):
    def forward(self, x: Tensor) -> Any:  # type: ignore[override]  # vmap cannot batch the state that LSTM makes itself
        return super().forward(x, (torch.zeros_like(x[:, 0])[None],) * 2)


class Body(nn.Module):
    def __init__(self, shape: Shape, recurrent: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.emb = nn.Embedding(shape.vocabulary, shape.width)
        self.lstm = recurrent(shape.width, shape.width, batch_first=True)

    def forward(self, input_ids: Tensor, **_: Any) -> tuple[Tensor]:
        return (self.lstm(self.emb(input_ids))[0],)


class LM(nn.Module):
    """An LSTM language model with the few names by which Hugging Face models show their parts."""

    def __init__(self, shape: Shape, recurrent: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.body, self.out = Body(shape, recurrent), nn.Linear(shape.width, shape.vocabulary)

    @property
    def base_model(self) -> nn.Module:
        return self.body

    def get_output_embeddings(self) -> nn.Linear:
        return self.out

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.out(self.body(input_ids)[0]))


def build(shape: Shape, tied: bool = True, recurrent: Callable[..., nn.Module] = nn.LSTM) -> Any:
    torch.manual_seed(0)
    if shape.family == "lstm":
        return LM(shape, recurrent)
    hub: Any = importlib.import_module("transformers")
    hub.logging.set_verbosity_error()
    sizes: Numbers = {"vocab_size": shape.vocabulary, "hidden_size": shape.width, "num_hidden_layers": shape.layers}
    sizes |= {"num_attention_heads": shape.heads, "max_position_embeddings": max(shape.length, 128)}
    if shape.family == "gpt2":
        sizes |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
        return hub.GPT2LMHeadModel(hub.GPT2Config(**sizes, tie_word_embeddings=tied)).train()
    if shape.family == "bert":
        sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 2}
        return hub.BertForSequenceClassification(hub.BertConfig(**sizes, intermediate_size=4 * shape.width)).train()
    peft: Any = importlib.import_module("peft")
    sizes |= {"num_key_value_heads": shape.heads // 2, "intermediate_size": shape.width * 43 // 16}
    llama = hub.LlamaForCausalLM(hub.LlamaConfig(**sizes, tie_word_embeddings=False))
    lora = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM")
    return peft.get_peft_model(llama, lora).train()


def corpus(shape: Shape) -> Batch:
    coins, size = torch.Generator().manual_seed(1), 16 * shape.batch
    tokens = torch.randint(shape.vocabulary, (size, shape.length), generator=coins)
    return tokens, torch.randint(2, (size,), generator=coins)


def batches(shape: Shape) -> Iterator[Batch]:
    tokens, labels = corpus(shape)
    while True:
        rows = torch.randint(len(tokens), (shape.batch,))
        yield tokens[rows], labels[rows]


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)


def plain_loss(model: Any, shape: Shape, batch: Batch) -> Any:
    tokens, labels = batch
    if shape.family == "lstm":
        return cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())
    return model(input_ids=tokens, labels=labels if shape.family == "bert" else tokens).loss


def plain(shape: Shape) -> Made:
    model, data = build(shape), batches(shape)
    return torch.optim.AdamW(model.parameters()), lambda: plain_loss(model, shape, next(data)).backward()


def strongest(shape: Shape) -> Made:
    importlib.import_module("confide.dp").keep_memory()
    model, data = build(shape), batches(shape)
    backward = fused_backward(model, shape)
    if shape == tiny(shape):  # which every arm's process begins with
        check(model, shape, backward)
    return fused_adamw(model), lambda: backward(next(data))


def fused_backward(model: Any, shape: Shape) -> Callable[[Batch], object]:
    """Backpropagation with the language-model head outside autograd; its logits become their own gradient in place."""
    if shape.family == "bert":
        return lambda batch: plain_loss(model, shape, batch).backward()
    whole = model.get_base_model() if shape.family == "llama" else model
    body, head = whole.base_model, whole.get_output_embeddings()
    weight, bias = head.weight, head.bias
    count = shape.batch * (shape.length - 1)
    minus, logits_of = torch.full((count, 1), -1.0), importlib.import_module("confide.dp.head").logits_of

    def backward(batch: Batch) -> None:
        tokens = batch[0]
        hidden = body(input_ids=tokens[:, :-1])[0]
        with torch.no_grad():
            inner = hidden.flatten(0, 1)
            logits = logits_of(inner, weight, bias)
            torch.softmax(logits, 1, out=logits)
            logits.scatter_add_(1, tokens[:, 1:].reshape(-1, 1), minus)
            gradient = torch.mm(logits, weight).div_(count).view_as(hidden)
        hidden.backward(gradient)
        with torch.no_grad():
            if bias is not None:
                bias.grad = logits.sum(0).div_(count)
            if weight.grad is not None:  # tied: the embedding's part is there already
                weight.grad.addmm_(logits.t(), inner, alpha=1 / count)
            elif weight.requires_grad:
                weight.grad = torch.mm(logits.t(), inner / count)

    return backward


def check(model: nn.Module, shape: Shape, backward: Callable[[Batch], object]) -> None:
    """The hand-written gradients are those of the plain loop."""
    batch, found = next(batches(shape)), []
    for work in (backward, lambda given: plain_loss(model, shape, given).backward()):
        work(batch)
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        model.zero_grad()
    error = float((found[0] - found[1]).norm() / found[1].norm())
    assert error < 1e-5, f"the fused head's gradient is off by {error:.1e}"


def confide(shape: Shape) -> Made:
    from confide.dp import Plan, PrivateGradients

    model, (tokens, labels) = build(shape), corpus(shape)
    labels = labels if shape.family == "bert" else tokens
    rate, settings = shape.batch / len(tokens), {"noise_multiplier": 1.0, "clip_norm": 1.0}
    plan = Plan(records=len(tokens), sampling_rate=rate, steps=10**6, sampler="fixed-size", **settings)
    private = PrivateGradients(model, plan, task="classify" if shape.family == "bert" else "causal")
    steps = plan.run()

    def backward() -> None:
        step = next(steps)
        for rows in step.microbatches(shape.batch):
            private.accumulate({"input_ids": tokens[rows], "labels": labels[rows]})
        private.release(step)

    return fused_adamw(model), backward


def record_losses(model: Any, shape: Shape, batch: Batch, positions: bool = False) -> Tensor:
    tokens, labels = batch
    causal = shape.family != "bert"
    inputs = {"input_ids": tokens[:, :-1].contiguous() if causal else tokens}
    if positions and shape.family in ("gpt2", "bert"):
        inputs["position_ids"] = torch.arange(inputs["input_ids"].shape[1]).repeat(len(tokens), 1)
    if not causal:
        inputs["token_type_ids"] = torch.zeros_like(tokens)
        return cross_entropy(model(**inputs).logits, labels, reduction="none")
    losses = cross_entropy(model(**inputs).logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return losses.view(len(tokens), -1).mean(1)


def linear_for_conv1d(model: Any) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "Conv1D":
                linear = nn.Linear(*child.weight.shape)
                linear.weight.data, linear.bias.data = child.weight.data.t().contiguous(), child.bias.data
                setattr(parent, name, linear)


def opacus(shape: Shape, ghost: bool = False) -> Made:
    library: Any = importlib.import_module("opacus")
    tensors: Any = importlib.import_module("opacus.utils.fast_gradient_clipping_utils")
    inner, data = build(shape, tied=not ghost, recurrent=library.layers.DPLSTM), batches(shape)
    linear_for_conv1d(inner)
    kind = "FastGradientClipping" * ghost
    model = getattr(library.grad_sample, f"GradSampleModule{kind}")(inner)
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": shape.batch}
    optimizer = getattr(library.optimizers, f"DPOptimizer{kind}")(fused_adamw(model), **settings)

    def backward() -> None:
        losses = record_losses(model, shape, next(data), positions=True)
        loss = tensors.DPTensorFastGradientClipping(model, optimizer, losses) if ghost else losses.mean()
        loss.backward()

    return optimizer, backward


def vmap(shape: Shape) -> Made:
    model, data = build(shape, recurrent=Started), batches(shape)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def loss(weights: dict[str, Tensor], tokens: Tensor, label: Tensor) -> Tensor:
        called = lambda **inputs: torch.func.functional_call(model, weights, (), inputs)  # noqa: E731
        return record_losses(called, shape, (tokens[None], label[None]))[0]

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def backward() -> None:
        with torch.backends.mkldnn.flags(enabled=shape.family != "lstm"):  # vmap has no rule for oneDNN's LSTM
            found = gradients({name: p.detach() for name, p in trained.items()}, *next(data))
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).norm(dim=0)
        factors = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for name, p in trained.items():
            total = torch.einsum("i,i...", factors, found.pop(name))
            p.grad = total.add_(torch.randn_like(total)).div_(shape.batch)

    return fused_adamw(model), backward


ARMS: Arms = {"plain": plain, "strongest": strongest, "confide": confide}
PEERS: Arms = {"opacus-hooks": opacus, "opacus-ghost": partial(opacus, ghost=True), "vmap": vmap}


def make(arm: str, shape: Shape) -> Callable[[], None]:
    optimizer, backward = {**ARMS, **PEERS}[arm](shape)

    def step() -> None:
        backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def megabytes(field: str) -> float:
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) / 1024


def serve(arm: str, shape: Shape, keep: bool) -> None:
    """Make as many steps as each line on standard input asks for, and answer each line with the time they took."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not look like an answer
    before, step = 0.0, None
    for line in sys.stdin:
        try:
            if step is None:
                if keep:
                    importlib.import_module("confide.dp").keep_memory()
                make(arm, tiny(shape))()  # imports all that the arm needs, so that only the model counts as memory
                before = megabytes("VmRSS")
                step = make(arm, shape)
                Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
            begin = time.perf_counter()
            for _ in range(int(line)):
                step()
            answer: Numbers = {"seconds": time.perf_counter() - begin, "MB": megabytes("VmHWM") - before}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"}
        print(json.dumps(answer), file=answers)


def start(arm: str, model: str, keep: bool) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--serve", arm, "--models", model, *["--keep-memory"] * keep]
    pipes: Numbers = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, **pipes, text=True)


def ask(process: Any, steps: int) -> Numbers:
    time.sleep(0.05)  # until the threads of the arm before have stopped spinning (10 ms with libgomp's default)
    try:
        print(steps, file=process.stdin, flush=True)
        return dict(json.loads(process.stdout.readline()))
    except (BrokenPipeError, json.JSONDecodeError):
        return {"failed": f"the process ended with code {process.wait()}"}


def measure(model: str, names: list[str], rounds: int, turn: float, keep: bool) -> Numbers:
    arms = {name: start(name, model, keep) for name in names}
    found: Numbers = {name: {"times": []} for name in names}
    try:
        for name, arm in arms.items():
            found[name] |= ask(arm, 1)
            if "failed" not in found[name]:
                found[name] |= ask(arm, 1)
        count = max(1, min(10, round(turn / found["plain"].get("seconds", 1))))
        for _ in range(rounds):
            for name in random.sample(names, len(names)):
                if "failed" not in found[name]:
                    found[name] |= ask(arms[name], count)
                    found[name]["times"].append(found[name]["seconds"] / count)
    finally:
        for arm in arms.values():
            arm.kill()
            arm.communicate()
    return found


def compare(numbers: Numbers, name: str) -> Numbers:
    if "failed" in (mine := numbers[name]):
        return {"failed": mine["failed"]}
    found: Numbers = {"seconds": statistics.median(mine["times"]), "MB": mine["MB"]}
    for other in ("plain", "strongest"):
        if "failed" not in (theirs := numbers[other]):
            ratios = [a / b for a, b in zip(mine["times"], theirs["times"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
            found[f"to {other}"] = {"median": middle, "quartiles": [low, high]}
            found[f"memory to {other}"] = mine["MB"] / theirs["MB"]
    return found


def show(found: Numbers) -> None:
    table = Table("model", "arm", "to plain", "quartiles", "to strongest", "quartiles", "memory", "remarks")
    for model, arms in found["models"].items():
        for name, numbers in arms.items():
            cells = []
            for ratio in (numbers.get("to plain"), numbers.get("to strongest")):
                cells += [f"{ratio['median']:.2f}", "{:.2f}–{:.2f}".format(*ratio["quartiles"])] if ratio else ["", ""]
            cells.append(f"×{numbers['memory to plain']:.2f}" if "memory to plain" in numbers else "")
            untied = name == "opacus-ghost" and shape_of(model).family == "gpt2"
            remark = f"fails: {numbers['failed']}" if "failed" in numbers else "untied: more parameters" * untied
            table.add_row(model, name, *cells, remark)
        table.add_section()
    about = f"torch {found['torch']}, {found['threads']} threads, {found['cpus']} CPUs, {found['rounds']} rounds"
    Console(width=None if sys.stdout.isatty() else 150).print(about, table, sep="\n", highlight=False)


def noise(rounds: int) -> Numbers:
    """Nanoseconds a number of three ways to make noise, in turn; medians of ratios to torch's normal_."""
    made: Any = importlib.import_module("confide.dp.noise")
    source, sums, compiled = made.GaussianNoise(), torch.zeros(2**24), made.COMPILED
    ways: dict[str, tuple[object, Callable[[], object]]] = {
        "compiled": (compiled, lambda: source.add_(sums, 1.0)),
        "torch in its place": (None, lambda: source.add_(sums, 1.0)),
        "normal_": (compiled, sums.normal_),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, (made.COMPILED, run) in ways.items():
            began = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - began) / len(sums) * 1e9)
    return {
        name: {
            "nanoseconds": statistics.median(own[1:]),
            "to normal_": statistics.median(a / b for a, b in zip(own[1:], times["normal_"][1:], strict=True)),
        }
        for name, own in times.items()
        if name != "compiled" or compiled
    }


def profile(arm: str, shape: Shape) -> None:
    step = make(arm, shape)
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(5):
            step()
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=30, max_name_column_width=60))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="two rounds on two small shapes")
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--models", help=f"of {', '.join([*SHAPES, *GROUPS])}, with commas; main if not given")
    arguments.add_argument("--rounds", type=int, help="at least two")
    arguments.add_argument("--no-peers", action="store_true")
    arguments.add_argument("--all-peers", action="store_true", help="also for models outside of main and quick")
    arguments.add_argument("--keep-memory", action="store_true", help="the same allocator setting for every arm")
    arguments.add_argument("--noise", action="store_true", help="noise alone")
    arguments.add_argument("--profile", metavar="MODEL", help="the costliest operations of five steps of one arm")
    arguments.add_argument("--arm", choices=[*ARMS, *PEERS], default="confide", help="the arm to profile")
    arguments.add_argument("--serve", choices=[*ARMS, *PEERS], help=argparse.SUPPRESS)
    given = arguments.parse_args()
    warnings.simplefilter("ignore")
    if given.serve:
        return serve(given.serve, shape_of(given.models), given.keep_memory)
    if given.profile:
        return profile(given.arm, shape_of(given.profile))
    if given.noise:
        alone = noise(given.rounds or 9)
        print(json.dumps(alone) if given.json else "\n".join(f"{name:20} {times}" for name, times in alone.items()))
        return None
    names = (given.models or ("quick" if given.quick else "main")).split(",")
    rounds, turn = (
        max(2, given.rounds or (2 if given.quick else 9)),
        0.1 if given.quick else 0.5,
    )  # seconds of plain training
    about = {"torch": torch.__version__, "threads": torch.get_num_threads(), "cpus": os.cpu_count()}
    found: Numbers = {**about, "rounds": rounds, "models": {}}
    for model in [model for name in names for model in GROUPS.get(name, [name])]:
        peers = not given.no_peers and (given.all_peers or model in GROUPS["main"] + GROUPS["quick"])
        numbers = measure(model, [*ARMS, *(PEERS if peers else ())], rounds, turn, given.keep_memory)
        found["models"][model] = {name: compare(numbers, name) for name in numbers}
    return print(json.dumps(found)) if given.json else show(found)


if __name__ == "__main__":
    main()
