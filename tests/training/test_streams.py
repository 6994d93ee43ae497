"""No run uses a coin twice: every byte that sampling and noise took is written down and compared with all the others.

Over steps, parameters, processes, a kill and a resume, a fork, and two runs of one seed. A planted fault shows that it would be seen.
"""

import multiprocessing
import os
import signal
import socket
import sys

import numpy as np
import pytest
import torch

from confide.cli import main
from confide.dp import PrivateGradients, keystream
from confide.dp.compiled import COMPILED
from confide.dp.keystream import Keystream
from confide.dp.noise import GaussianNoise
from confide.dp.sampling import PoissonSampler

FORK = multiprocessing.get_context("fork")
OPTIONS = {
    "model": "lstm:hidden_size=8,embedding_size=8", "vocabulary-size": 300, "max-length": 32, "epochs": 1, "delta": 1e-3, "noise": 1.0,
    "private-batch-size": 40, "reserve": 1, "checkpoint-every": 1, "batch-size": 100, "seed": 7, "dropout": 0.1,
}  # fmt: skip
WORDS = [str(word) for name, value in OPTIONS.items() for word in (f"--{name}", value)]
WINDOW = 16  # bytes: by chance two of 2^24 places agree with probability 2^-81


def note(home, fault=None):
    """Write every byte that a keystream gives into a file of this process; with `fault`, after planting it.

    Compiled loops make their bytes themselves, of counters that they reserve: the bytes of all reserved counters are written.
    """
    take, reserve = Keystream.take, Keystream.reserve

    def write(found):
        with open(home / f"{os.getpid()}.coins", "ab") as file:
            file.write(found.tobytes() + bytes(np.random.default_rng().bytes(WINDOW)))  # takes are kept apart
        return found

    def reserved(self, blocks):
        counters, made = reserve(self, blocks), np.empty(16 * blocks, np.uint8)
        COMPILED.confide_stream(*counters, 0, blocks, made.ctypes.data, 1)
        write(made)
        return counters

    if COMPILED:
        Keystream.reserve = reserved
    else:
        Keystream.take = lambda self, count: write(take(self, count))
    if fault:
        fault()


def repeats(home):
    """How many places of all that was taken hold the same bytes as another place."""
    places = []
    for file in home.glob("*.coins"):
        coins = np.frombuffer(file.read_bytes(), np.uint8)
        places.append(np.lib.stride_tricks.sliding_window_view(coins, WINDOW).view(f"V{WINDOW}").copy().ravel())
    every = np.concatenate(places).view([("a", np.uint64), ("b", np.uint64)])
    order = np.sort(every, order=("a", "b"))
    assert len(order) > 10_000, "too few coins were taken to say anything"
    return int((order[1:] == order[:-1]).sum())


def command(rank, number, port, home, stop, words, fault):
    if number > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(number))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    note(home, fault)
    release, taken = PrivateGradients.release, []

    def releases(self, step):
        release(self, step)
        taken.append(step)
        if len(taken) == stop:
            os.kill(os.getpid(), signal.SIGKILL)

    PrivateGradients.release = releases
    main([str(word) for word in words])


def train(home, *words, number=1, stop=None, fault=None):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    started = [
        FORK.Process(target=command, args=(rank, number, port, home, stop, ("train", *words), fault))
        for rank in range(number)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(100)
    assert [process.exitcode for process in started] == [-signal.SIGKILL if stop else 0] * number


def seeded():
    """The fault: coins that follow from the seed of the run."""
    coins = np.random.default_rng(OPTIONS["seed"])
    keystream.urandom = lambda count: coins.bytes(count)


def test_kill_resume_a_second_run_of_one_seed_and_two_processes_share_no_coin(screened, tmp_path):
    first = tmp_path / "first"
    train(tmp_path, screened.folder, "-o", first, *WORDS, stop=2)
    train(tmp_path, "--resume", "-o", first)
    train(tmp_path, screened.folder, "-o", tmp_path / "again", *WORDS)
    train(tmp_path, screened.folder, "-o", tmp_path / "two", *WORDS, number=2)
    assert len(list(tmp_path.glob("*.coins"))) == 5
    assert repeats(tmp_path) == 0


def test_coins_that_follow_from_a_seed_are_seen(screened, tmp_path):
    train(tmp_path, screened.folder, "-o", tmp_path / "one", *WORDS, fault=seeded)
    train(tmp_path, screened.folder, "-o", tmp_path / "again", *WORDS, fault=seeded)
    assert repeats(tmp_path) > 1000


def draw(home, source, sampler):
    note(home)
    source.add_(torch.zeros(2000), 1.0)
    sampler.draw()


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_fork_in_the_middle_of_a_run_shares_no_coin(tmp_path, monkeypatch, forgetful):
    source, sampler = GaussianNoise(), PoissonSampler(20_000, 0.3)
    source.add_(torch.zeros(2000), 1.0)
    sampler.draw()
    if forgetful:  # the fault: a stream that does not notice that it was forked
        monkeypatch.setattr("confide.dp.keystream.process", lambda: source._process)
        monkeypatch.setattr("confide.dp.noise.process", lambda: source._process)
    children = [FORK.Process(target=draw, args=(tmp_path, source, sampler)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    for name in ("take", "reserve"):  # puts back what `note` sets here
        monkeypatch.setattr(Keystream, name, getattr(Keystream, name))
    draw(tmp_path, source, sampler)
    assert len(list(tmp_path.glob("*.coins"))) == 3
    assert (repeats(tmp_path) > 1000) is forgetful
