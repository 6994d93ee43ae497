"""Several processes are one run: the same sums, noise once, the same ledger, and any number of them may go on with it."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from confide.accounting import read_ledger, verify
from confide.cli import main
from confide.dp import PrivateGradients
from confide.dp import noise as noise_of_torch
from confide.dp.noise import Lane
from confide.dp.sampling import PoissonSampler
from confide.training import Run, make_plan

FORK = multiprocessing.get_context("fork")  # children that need not import torch again


def worker(rank, number, port, home, stop, words):
    """One process of a run, with known coins as the fixture has them; released gradients and noise are written down."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if number > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(number))
    said = os.open(home / f"{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    coins, fill, release = np.random.default_rng(7), Lane.draw, PrivateGradients.release
    drawn, noise, released, kept = [], [], [], []

    def draw(self):
        chosen = np.flatnonzero(coins.random(self.records) < self.sampling_rate)  # one draw, of which each has a share
        return chosen[chosen % self._part[1] == self._part[0]]

    def noted(self, out, std):
        fill(self, out, std)
        noise.append(out / std)
        out.zero_()

    def releases(self, step):
        release(self, step)
        kept.append(torch.cat([p.grad.flatten() for p in self.model.parameters()]).clone())
        drawn.append(len(step.indices))
        released.append(torch.cat(noise))
        noise.clear()
        if stop == f"{rank}:{len(kept)}":
            os.kill(os.getpid(), signal.SIGKILL)

    PoissonSampler.draw, Lane.draw, PrivateGradients.release = draw, noted, releases
    noise_of_torch.COMPILED = None
    try:
        main([str(word) for word in words])
    finally:
        torch.save((kept, released, drawn), home / f"{rank}.pt")


CHOICES = {"model": "lstm:hidden_size=16,embedding_size=16", "vocabulary-size": 300, "max-length": 32, "epochs": 2}
CHOICES |= {
    "delta": 1e-3,
    "noise": 1.0,
    "private-batch-size": 40,
    "reserve": 1,
    "checkpoint-every": 1,
    "batch-size": 33,
}
OPTIONS = [str(word) for name, value in CHOICES.items() for word in (f"--{name}", value)]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def together(tmp_path):
    """A function that runs a command in several processes, as torchrun would; gives exit codes and what was said."""

    def run(number, *words, stop="never", timeout=60):
        port = free_port()
        started = [FORK.Process(target=worker, args=(r, number, port, tmp_path, stop, words)) for r in range(number)]
        for process in started:
            process.start()
        late = time.monotonic() + timeout
        for process in started:
            process.join(max(0.0, late - time.monotonic()))
        hangs = [process.is_alive() for process in started]
        for process in started:
            process.kill()
            process.join()
        assert not any(hangs), "a process waits for one that is gone"
        said = [(tmp_path / f"{r}.txt").read_text() for r in range(number)]
        notes = [torch.load(tmp_path / f"{r}.pt") if (tmp_path / f"{r}.pt").exists() else None for r in range(number)]
        for note in tmp_path.glob("*.pt"):
            note.unlink()
        return [process.exitcode for process in started], said, notes

    return run


def far(one, other):
    return float((one - other).norm() / other.norm())


def test_two_processes_train_what_one_does_with_noise_once(screened, together, tmp_path):
    codes, said, [one] = together(1, "train", screened.folder, "-o", tmp_path / "one", *OPTIONS)
    assert codes == [0], said
    codes, said, two = together(2, "train", screened.folder, "-o", tmp_path / "two", *OPTIONS)
    assert codes == [0, 0], said
    assert "epsilon" in said[0]
    assert said[1] == ""  # one of them speaks
    (alone, _, sizes), (first, noise, mine), (second, others, theirs) = one, *two
    assert len(alone) == len(first) == 6
    assert sizes == [a + b for a, b in zip(mine, theirs, strict=True)]
    assert min(sum(mine), sum(theirs)) > 0
    for a, b, c in zip(alone, first, second, strict=True):
        assert torch.equal(b, c)
        assert far(b, a) < 1e-5  # the sum before noise
    for here, there in zip(noise, others, strict=True):
        both = torch.cat([here, there])
        assert abs(len(here) - len(there)) <= 1  # every number's noise comes from one of them
        assert 0 <= len(both) - alone[0].numel() < 0.01 * len(both)  # padding of buffers at most
        assert float(both.std()) == pytest.approx(1.0, rel=0.1)
    lone, joint = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two"))
    assert max(float((lone[name] - joint[name]).abs().max()) for name in lone) < 1e-5
    lines = [Run(tmp_path / name).telemetry() for name in ("one", "two")]
    for a, b in zip(*lines, strict=True):
        assert a.keys() == b.keys()
        assert all(
            a[name] == (pytest.approx(b[name], rel=1e-4) if isinstance(a[name], float) else b[name]) for name in a
        )
    ledgers = [read_ledger(tmp_path / name / "ledger.jsonl") for name in ("one", "two")]
    assert (ledgers[0].planned, ledgers[0].spent) == (ledgers[1].planned, ledgers[1].spent)


def test_a_run_goes_on_with_two_one_and_two_processes_after_each_was_killed(screened, together, tmp_path):
    out = tmp_path / "run"
    codes, said, _ = together(2, "train", screened.folder, "-o", out, *OPTIONS, stop="1:2")
    assert codes[1] == -signal.SIGKILL
    assert codes[0] == 1, said
    assert "another process of this run ended" in said[0]
    assert "--resume" in said[0]
    assert "Traceback" not in said[0]
    codes, said, _ = together(1, "train", "--resume", "-o", out, stop="0:1")
    assert codes == [-signal.SIGKILL], said
    paid = sum(event.count for _, event in read_ledger(out / "ledger.jsonl").spent)
    assert 2 <= paid <= 5
    codes, said, notes = together(2, "train", "--resume", "-o", out)
    assert codes == [0, 0], said
    made = make_plan(screened, **{name.replace("-", "_"): value for name, value in CHOICES.items()})
    assert (
        sum(event.count for _, event in read_ledger(out / "ledger.jsonl").spent)
        == made.private["train"].steps
        == paid + len(notes[0][0])
    )
    assert verify(out).certificate["guarantees"] == made.certificate()["guarantees"]
    Run(out).model()


def test_the_first_process_killed_ends_the_others(screened, together, tmp_path):
    codes, said, _ = together(2, "train", screened.folder, "-o", tmp_path / "run", *OPTIONS, stop="0:1")
    assert codes[0] == -signal.SIGKILL
    assert codes[1] == 1, said
    assert "another process of this run ended" in said[1]


def test_bad_input_ends_all_processes_in_words(screened, together, tmp_path):
    (tmp_path / "run").mkdir()
    codes, said, _ = together(2, "train", screened.folder, "-o", tmp_path / "run", *OPTIONS)
    assert codes == [2, 2], said
    assert "never overwritten" in said[0]


def test_torchrun_starts_it(screened, tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    words = [
        "-m",
        "confide",
        "train",
        str(screened.folder),
        "-o",
        str(tmp_path / "run"),
        *OPTIONS,
        "--epochs",
        "1",
        "--json",
    ]
    began = time.monotonic()
    done = subprocess.run(
        [*launch, *words], capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.strip().splitlines()[-1])["epsilon"] > 0
    assert Path(tmp_path / "run" / "certificate.json").exists()
    assert time.monotonic() - began < 120
