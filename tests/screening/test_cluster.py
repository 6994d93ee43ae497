"""The same command on a Ray cluster of two nodes, here both on the loopback interface: same bytes, and no record lost."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from confide.errors import BadInput
from confide.screening import screen

KEY = b"k" * 32


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(folder, *options):
    """A Ray node that lives as long as its process: `ray start … --block`."""
    ray = Path(sys.executable).with_name("ray")
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
    quiet["PYTHONPATH"] = str(folder)
    return subprocess.Popen(
        [str(ray), "start", "--block", "--num-cpus=1", "--object-store-memory=100000000", *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=quiet, start_new_session=True,
    )  # fmt: skip


DYING = """
import os, pathlib, re

DIED = pathlib.Path(__file__).with_name("died")

def find(text):
    if "tracking" in text and not DIED.exists():
        DIED.touch()
        os._exit(9)  # as if the machine had lost power
    return [(m.start(), m.end(), "DIGITS") for m in re.finditer("[0-9]+", text)]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """`ray start --head`, and a second node that joins it, as docs/screening.md says; with a policy that dies once."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "dying_policy.py").write_text(DYING)
    address = f"127.0.0.1:{free_port()}"
    local = "--node-ip-address=127.0.0.1"
    nodes = [start(folder, "--head", local, f"--port={address.split(':')[1]}", "--include-dashboard=false")]
    try:
        _wait_for(address)
        nodes.append(start(folder, local, f"--address={address}"))
        yield address, folder
    finally:
        for node in reversed(nodes):
            node.terminate()  # `ray start --block` then ends its children
        for node in nodes:
            try:
                node.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(node.pid, signal.SIGKILL)


def _wait_for(address, seconds=60):
    host, port = address.split(":")
    for _ in range(seconds * 5):
        try:
            with socket.create_connection((host, int(port)), timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the cluster did not start")


def test_two_nodes_write_the_same_as_one_process(cluster, corpus, tmp_path):
    address, _ = cluster
    options = {"unit": "turn", "conservative": "allowlist", "dedup": "exact", "key": KEY, "chunk": 8000}
    here = screen(str(corpus), "patterns", tmp_path / "here", workers=1, **options)
    there = screen(str(corpus), "patterns", tmp_path / "there", cluster=address, **options)
    assert here.manifest == there.manifest


def test_a_killed_worker_loses_and_doubles_nothing(cluster, corpus, tmp_path, monkeypatch):
    address, folder = cluster
    monkeypatch.syspath_prepend(folder)
    there = screen(str(corpus), "python:dying_policy:find", tmp_path / "there", cluster=address, key=KEY, chunk=8000)
    assert (folder / "died").exists()
    here = screen(str(corpus), "digits", tmp_path / "here", workers=1, key=KEY)
    assert here.manifest["digest"] == there.manifest["digest"]


def test_a_cluster_that_does_not_answer_is_named(corpus, tmp_path):
    with pytest.raises(BadInput, match="no Ray cluster answers"):
        screen(str(corpus), "digits", tmp_path / "out", cluster=f"127.0.0.1:{free_port()}")
    with pytest.raises(BadInput, match="--cluster is `auto`"):
        screen(str(corpus), "digits", tmp_path / "out", cluster="nowhere at all")
