"""Small corpora, models of a few hundred numbers, and coins that a test may know: there are none outside the tests."""

import contextlib
import json
import shutil

import numpy as np
import pytest
import torch

from confide.dp.noise import Lane
from confide.dp.sampling import PoissonSampler
from confide.experiments.customersim import dialogues, people
from confide.screening import screen
from confide.training import make_plan, train_plan

LSTM = "lstm:hidden_size=16,embedding_size=16"
GPT = "gpt2-tiny:hidden_size=16,num_hidden_layers=1,num_attention_heads=2"
SMALL = {
    "vocabulary_size": 300,
    "max_length": 32,
    "epochs": 2,
    "private_batch_size": 40,
    "log_every": 1,
    "checkpoint_every": 1000,
}
NOISED = {"delta": 1e-3, "noise": 1.0}
WORDS = [
    "the",
    "parcel",
    "was",
    "sent",
    "to",
    "you",
    "last",
    "week",
    "and",
    "we",
    "hope",
    "that",
    "all",
    "of",
    "it",
    "was",
    "fine",
    "thank",
    "you",
    "for",
    "the",
    "kind",
    "words",
]


@contextlib.contextmanager
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _one_thread():
    """Tests run side by side, and models are tiny."""
    with one_thread():
        yield


@pytest.fixture(scope="session")
def small():
    """A function from choices to the options of a small run; private methods get noise if none is named."""

    def make(**choices):
        private = choices.get("method", "crt") in ("crt", "dpsgd", "sdp", "jft")
        noised = {} if not private or "epsilon" in choices else NOISED
        return {"model": LSTM, **SMALL, **noised, **choices}

    return make


@pytest.fixture(scope="session")
def chats():
    """Simulated dialogues, whose secrets are known."""
    return list(dialogues(40, crowd=people(0, 60)))


@pytest.fixture(scope="session")
def screened(tmp_path_factory, chats):
    """Their turns, screened with a policy that misses some secrets; the public part is what a word list allows."""
    home = tmp_path_factory.mktemp("chats")
    rows = [{"id": chat.id, "text": chat.text} for chat in chats]
    (home / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    policy = "miss(customersim, 0.1)"
    return screen(
        str(home / "chats.jsonl"), policy, home / "screened", conservative="allowlist", unit="turn", workers=1
    )


@pytest.fixture(scope="session")
def screen_texts(tmp_path_factory):
    """A function from texts, a policy and options to a screened corpus of them."""

    def run(texts, policy="nothing", conservative="nothing", labels=None, **options):
        home = tmp_path_factory.mktemp("texts")
        rows = [{"id": f"r{i}", "text": text} for i, text in enumerate(texts)]
        for row, label in zip(rows, labels or (), strict=False):
            row["label"] = label
        (home / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (home / "words.txt").write_text(" ".join(WORDS) * 5)
        if labels:
            from confide.records import Fields

            options["fields"] = Fields(label="label")
        return screen(
            str(home / "texts.jsonl"),
            policy,
            home / "screened",
            conservative=conservative,
            workers=1,
            **{"dedup": "off", **options},
        )

    return run


@pytest.fixture(scope="session")
def plain_texts():
    """Texts in which no policy finds anything."""
    coins = np.random.default_rng(0)
    return [" ".join(coins.choice(WORDS, coins.integers(2, 12))) for _ in range(60)]


@pytest.fixture(scope="session")
def outside(tmp_path_factory):
    """A file of outside text, for vocabularies."""
    path = tmp_path_factory.mktemp("outside") / "outside.txt"
    path.write_text("\n\n".join(" ".join(WORDS) for _ in range(5)))
    return str(path)


@pytest.fixture
def trained(tmp_path, small):
    """A function from a screened corpus and choices to a finished run."""
    numbers = iter(range(1000))

    def run(corpus, **choices):
        return train_plan(make_plan(corpus, **small(**choices)), tmp_path / f"run{next(numbers)}")

    return run


@pytest.fixture
def coins(monkeypatch):
    """A function that deals the sampler's and the noise's coins anew from a known seed."""
    known = {}

    def draw(self):
        rank, world = self._part
        chosen = known["draws"].random(self.records) < self.sampling_rate
        return np.flatnonzero(chosen)[np.flatnonzero(chosen) % world == rank]

    def noise(self, out, std):
        drawn = known["noise"].normal(0, std, out.numel())
        out.copy_(torch.from_numpy(drawn).view(out.shape))

    def deal(seed=0):
        known.update(draws=np.random.default_rng([seed, 1]), noise=np.random.default_rng([seed, 2]))

    monkeypatch.setattr(PoissonSampler, "draw", draw)
    monkeypatch.setattr("confide.dp.noise.COMPILED", None)
    monkeypatch.setattr(Lane, "draw", noise)
    deal()
    return deal


@pytest.fixture
def silent(monkeypatch):
    """Noise of zero, so that the sum before noise shows."""
    monkeypatch.setattr("confide.dp.noise.COMPILED", None)
    monkeypatch.setattr(Lane, "draw", lambda self, out, std: out.zero_())


@pytest.fixture(scope="session")
def weights():
    """A function from a run, or a model, to its weights by name."""

    def read(run):
        model = run.model() if hasattr(run, "folder") else run
        return {name: value.clone() for name, value in model.state_dict().items()}

    return read


@pytest.fixture(scope="session")
def finished(tmp_path_factory, screened, small):
    """A finished crt run with a target, that tests may read but not change."""
    made = make_plan(screened, **small(epsilon=8.0, delta=1e-3, dropout=0.1, checkpoint_every=3))
    with one_thread():
        return train_plan(made, tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run, to be damaged."""
    shutil.copytree(finished.folder, tmp_path / "copy")
    return tmp_path / "copy"
