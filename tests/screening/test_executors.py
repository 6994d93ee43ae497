"""Wherever work runs, results come in the order of the jobs, and errors say nothing of a record."""

import tempfile
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace

import pytest

from confide.errors import BadInput, ConfideError
from confide.screening import executors
from confide.screening.executors import do

CHUNK = SimpleNamespace(name="c.jsonl")


def screener(error):
    def screen(chunk):
        if error is None:
            return chunk.name
        raise error

    return SimpleNamespace(screen=screen)


@pytest.mark.parametrize("error", [ValueError("ann@example.org"), SystemExit("ann@example.org"), KeyError("ann")])
def test_an_unexpected_error_keeps_its_kind_and_its_place_and_loses_its_message(error):
    with pytest.raises(ConfideError) as caught:
        do(screener(error), ("screen", (CHUNK,)))
    assert type(caught.value) is ConfideError
    text = str(caught.value)
    assert text.startswith(f"screening failed in c.jsonl with {type(error).__name__} at test_executors.py:")
    assert "ann" not in text
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("error", [BadInput("row 3: text is null"), KeyboardInterrupt()])
def test_an_expected_error_stays_as_it_is(error):
    with pytest.raises(type(error)) as caught:
        do(screener(error), ("screen", (CHUNK,)))
    assert caught.value is error


def test_a_job_without_an_error_has_its_result():
    assert do(screener(None), ("screen", (CHUNK,))) == "c.jsonl"


def test_results_of_a_pool_come_in_order_and_few_are_under_way():
    under_way, most = [], []

    def submit(job):
        under_way.append(Future())
        under_way[-1].set_result(job)
        most.append(len(under_way))
        return under_way[-1]

    found = []
    for result in executors._ordered(range(20), submit, 2):
        found.append(result)
        under_way.pop()
    assert found == list(range(20))
    assert max(most) == 5


def test_a_pool_that_died_is_said_to_have_died():
    def submit(job):
        future = Future()
        future.set_exception(BrokenProcessPool("ann@example.org"))
        return future

    with pytest.raises(ConfideError, match="a worker process died") as caught:
        list(executors._ordered([1], submit, 1))
    assert "ann" not in str(caught.value)


@pytest.fixture
def dialled(monkeypatch):
    """The places that were called, as (host, port)."""
    places = []

    def connect(place, timeout):
        places.append(place)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(executors.socket, "create_connection", connect)
    return places


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("head:1234", ("head", 1234)),
        ("head", ("head", 6379)),
        ("ray://head", ("head", 10001)),
        ("ray://head:7", ("head", 7)),
    ],
)
def test_a_cluster_is_called_at_its_address(dialled, monkeypatch, address, place):
    executors._answers(address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    executors._answers("auto")
    assert dialled == [place] * 2


def test_the_cluster_of_this_machine_is_the_one_that_was_started_last(dialled, monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(BadInput, match="no Ray cluster runs on this machine"):
        executors._answers("auto")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:5\n")
    executors._answers("auto")
    assert dialled == [("10.0.0.1", 5)]


@pytest.mark.parametrize("address", ["head:99999999", "127.0.0.1:1"])
def test_an_address_where_nobody_listens_is_named(address):
    host, port = address.split(":")
    with pytest.raises(BadInput, match=f"no Ray cluster answers at {host}, port {port}"):
        executors._answers(address)


def test_without_ray_a_cluster_is_refused(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(executors.importlib, "import_module", missing)
    with pytest.raises(BadInput, match="--cluster needs Ray"), executors.executor(None, b"", 1, "auto"):
        pass
    assert executors.os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


class Ray:
    """As much of Ray as gives jobs to actors: the job that was given last is done first."""

    def __init__(self):
        self.under_way = self.most = 0

    def actor(self):
        def remote(job):
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            return ("reference", job)

        return SimpleNamespace(work=SimpleNamespace(remote=remote))

    def wait(self, references, num_returns):
        return references[-num_returns:], references[:-num_returns]

    def get(self, reference):
        self.under_way -= 1
        return reference[1]


@pytest.mark.parametrize("actors", [1, 3])
@pytest.mark.parametrize("jobs", [0, 1, 7, 40])
def test_results_of_a_cluster_come_in_order_and_few_are_under_way(actors, jobs):
    ray = Ray()
    found = list(executors._on_actors(ray, [ray.actor() for _ in range(actors)], range(jobs)))
    assert found == list(range(jobs))
    assert ray.most <= 4 * actors + 1


def test_errors_of_a_cluster_say_nothing_of_a_record():
    class RayError(Exception):
        pass

    class RayTaskError(RayError):
        def __init__(self, cause):
            self.cause = cause

    def get(error):
        raise error

    ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError))
    for error, text in (
        (RayTaskError(BadInput("row 3: text is null")), "row 3: text is null"),
        (RayTaskError(ValueError("ann")), "a worker on the cluster failed"),
        (RayError("ann"), r"the cluster lost a job \(RayError\); go on with --resume"),
    ):
        with pytest.raises(ConfideError, match=f"^{text}$"):
            executors._result(ray, error)
