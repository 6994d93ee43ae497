"""Where the work runs: in this process, in a pool of processes, or on a Ray cluster. The results are the same.

Chunks go in, results come out in the order of the chunks; only a few are under way at a time, so that memory stays
bounded and nothing is spilled to disk on the way.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import BadInput, ConfideError
from .batches import Screener
from .options import Options

Job = tuple[str, Any]  # the name of a method of Screener, and its arguments
Executor = Callable[[Iterable[Job]], Iterator[Any]]

_screener: Screener | None = None  # of a worker process


def _start(options: Options, key: bytes) -> None:
    global _screener
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process says that it was interrupted
    _screener = Screener(options, key)


def _work(job: Job) -> Any:
    assert _screener is not None
    return do(_screener, job)


def do(screener: Screener, job: Job) -> Any:
    """Run one job. An unexpected error keeps its kind and loses its message, which may quote a record."""
    method, arguments = job
    try:
        return getattr(screener, method)(*arguments)
    except ConfideError:
        raise
    except (Exception, SystemExit) as error:
        last = error.__traceback__
        while last and last.tb_next:
            last = last.tb_next
        where = f"{os.path.basename(last.tb_frame.f_code.co_filename)}:{last.tb_lineno}" if last else "?"
        raise ConfideError(
            f"screening failed in {arguments[0].name} with {type(error).__name__} at {where}; this is a mistake in confide or "
            "in a policy of yours"
        ) from None


@contextlib.contextmanager
def executor(options: Options, key: bytes, workers: int, cluster: str | None = None) -> Iterator[Executor]:
    """The place where jobs run, set up once and taken down at the end."""
    if cluster is not None:
        with _ray(options, key, cluster) as run:
            yield run
    elif workers == 1:
        screener = Screener(options, key)
        yield lambda jobs: (do(screener, job) for job in jobs)
    else:
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _start, (options, key))

        def submit(job: Job) -> Future[Any]:
            with _no_main_module():
                return pool.submit(_work, job)

        try:
            yield lambda jobs: _ordered(jobs, submit, workers)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep new processes from running the user's script again: it may lack the `if __name__ == "__main__"` guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    here = threading.current_thread() is threading.main_thread()
    # Inherited: interrupts are for this process
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if here else None
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if here:
            signal.signal(signal.SIGINT, before)


def _ordered(jobs: Iterable[Job], submit: Callable[[Job], Future[Any]], workers: int) -> Iterator[Any]:
    waiting: deque[Future[Any]] = deque()
    try:
        for job in jobs:
            waiting.append(submit(job))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise ConfideError(
            "a worker process died (out of memory, or killed); what is done is kept: go on with --resume, perhaps with "
            "fewer --workers"
        ) from None


class _Actor:
    """A worker on the cluster; the policies are loaded once in it."""

    def __init__(self, options: Options, key: bytes) -> None:
        self._screener = Screener(options, key)

    def work(self, job: Job) -> Any:
        return do(self._screener, job)


@contextlib.contextmanager
def _ray(options: Options, key: bytes, address: str) -> Iterator[Executor]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # before the import: no telemetry
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise BadInput("--cluster needs Ray: pip install 'confide[cluster]'") from None
    _answers(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, ImportError) as error:
        raise BadInput(
            f"no Ray cluster answers at {address} ({type(error).__name__}); start one with `ray start --head`"
        ) from None
    try:
        size = max(1, int(ray.cluster_resources().get("CPU", 1)))
        actor = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(_Actor)
        yield lambda jobs: _on_actors(ray, [actor.remote(options, key) for _ in range(size)], jobs)
    finally:
        ray.shutdown()


def _answers(address: str) -> None:
    """Refuse an address at which nobody listens; Ray itself would try for minutes."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "") or _current_cluster()
    named = re.fullmatch(r"(?:ray://)?([\w.-]+)(?::(\d+))?", address)
    if named is None:
        raise BadInput("--cluster is `auto` (the cluster that this machine belongs to), HOST:PORT or ray://HOST:PORT")
    port = int(named[2] or (10001 if address.startswith("ray://") else 6379))
    try:
        socket.create_connection((named[1], port), timeout=5).close()
    except (OSError, OverflowError):
        raise BadInput(
            f"no Ray cluster answers at {named[1]}, port {port}; start one with `ray start --head`"
        ) from None


def _current_cluster() -> str:
    """The address that `ray start` has left on this machine."""
    try:
        return (Path(tempfile.gettempdir()) / "ray" / "ray_current_cluster").read_text().strip()
    except OSError:
        raise BadInput("no Ray cluster runs on this machine; start one with `ray start --head`") from None


def _on_actors(ray: Any, actors: list[Any], jobs: Iterable[Job]) -> Iterator[Any]:
    """Give each idle actor the next job, hand results on in order. A dead actor is started again and its job repeated."""
    idle = deque(actors * 2)  # two jobs an actor: the next one is there when the first is done
    order: deque[Any] = deque()
    busy: dict[Any, Any] = {}
    for job in jobs:
        while not idle or len(order) > 4 * len(actors):
            if order[0] in busy or not idle:
                done, _ = ray.wait(list(busy), num_returns=1)
                idle.extend(busy.pop(reference) for reference in done)
            while order and order[0] not in busy:
                yield _result(ray, order.popleft())
        actor = idle.popleft()
        reference = actor.work.remote(job)
        busy[reference] = actor
        order.append(reference)
    while order:
        yield _result(ray, order.popleft())


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, ConfideError) else ConfideError("a worker on the cluster failed") from None
    except ray.exceptions.RayError as error:
        raise ConfideError(f"the cluster lost a job ({type(error).__name__}); go on with --resume") from None
