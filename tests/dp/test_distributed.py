"""Two processes: each draws from its share, and noise is in the sum exactly once."""

import json
import subprocess
import sys
import textwrap

import pytest

WORKER = textwrap.dedent(
    """
    import json, os, sys, torch
    import torch.distributed as dist
    from confide.accounting import LedgerWriter, Setting, read_ledger
    from confide.dp import Plan, PrivateGradients
    from confide.dp import noise as noise_module
    from confide.dp.noise import Lane

    rank, folder, noise = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Tanh(), torch.nn.Linear(40, 5)).train()
    x, y = torch.randn(60, 4, 30), torch.randn(60, 4, 5)

    def loss(model, batch):
        return (model(batch["x"]) - batch["y"]).square().flatten(1).mean(1)

    plan = Plan(records=60, sampling_rate=float(sys.argv[4]), steps=int(sys.argv[5]), noise_multiplier=1.5, clip_norm=0.2)
    if noise == "silent":
        noise_module.COMPILED, Lane.draw = None, lambda self, out, std: out.zero_()
    ledger = None
    if rank == 0:
        facts = Setting("dpsgd", "document", "none", "everything", 60, 0.2)
        ledger = LedgerWriter.create(f"{folder}/ledger.jsonl", facts.to_plain(), [("train", plan.event)])
    private = PrivateGradients(model, plan)
    drawn, kept = [], []
    for step in plan.run(ledger):
        for rows in step.microbatches(7):
            private.accumulate({"x": x[rows], "y": y[rows]}, loss)
        private.release(step)
        drawn.append(step.indices.tolist())
        kept.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())
    torch.save((drawn, torch.stack(kept)), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    """
)


@pytest.fixture
def two(tmp_path):
    def run(noise, rate, steps):
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, str(rank), str(tmp_path), noise, str(rate), str(steps)],
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        for process in processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors[-2000:]
        import torch

        return [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]

    return run


def test_two_processes_sum_what_one_would(two, tmp_path, clipped, far):
    import torch

    (mine, first), (theirs, second) = two("silent", 1.0, 1)
    assert mine == [list(range(0, 60, 2))]
    assert theirs == [list(range(1, 60, 2))]
    assert torch.equal(first, second)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Tanh(), torch.nn.Linear(40, 5))
    x, y = torch.randn(60, 4, 30), torch.randn(60, 4, 5)

    def loss(model, batch):
        return (model(batch["x"]) - batch["y"]).square().flatten(1).mean(1)

    _, sums = clipped(model, {"x": x, "y": y}, loss, clip_norm=0.2)
    whole = torch.cat([part.flatten() for part in sums])
    assert far([first[0].double() * 60], [whole]) < 1e-5
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"]["count"] for line in lines[1:]] == [1]


def test_noise_is_added_once_over_both_processes_and_every_parameter_gets_it(two):
    import torch

    (mine, first), (theirs, second) = two("real", 1e-9, 40)
    assert mine == theirs == [[]] * 40
    assert torch.equal(first, second)
    noise = first * (60 * 1e-9)
    assert float(noise.std()) == pytest.approx(1.5 * 0.2, rel=6 / (2 * noise.numel()) ** 0.5)
    assert (noise != 0).all()
    assert float(torch.corrcoef(noise).fill_diagonal_(0).abs().max()) < 6 / noise.shape[1] ** 0.5
