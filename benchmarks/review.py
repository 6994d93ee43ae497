"""How long the review page takes to answer at 100,000 records: from the request of an action to the whole answer, over HTTP.

In: nothing (a simulated corpus is made and screened). Out: the time to start, and the median and the worst time of each
kind of action, saved on disk when it is answered. `--quick` takes fewer records and actions, `--json` prints one object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from confide.experiments.customersim import dialogues, people
from confide.review import open_store
from confide.screening import screen

SERVE = """
import sys
from confide.review import serve
serve(sys.argv[1], port=0, open_browser=False, say=lambda text: print(text, flush=True))
"""


def corpus(folder: Path, records: int) -> Path:
    """So many screened turns of simulated dialogues."""
    texts = [json.dumps({"text": dialogue.text}) for dialogue in dialogues(1000, crowd=people(0, 200))]
    turns = 7 * len(texts)  # at least
    path = folder / "chats.jsonl"
    path.write_text("\n".join(texts * (1 + records // turns)) + "\n")
    screen(str(path), "customersim", folder / "screened", unit="turn", conservative="allowlist")
    return folder / "screened"


def answered(screened: Path, before: int, sample: int) -> None:
    """A review under way: so many records of the sample are answered already."""
    store = open_store(screened, sample=sample + 50)  # some records are drawn twice
    for place in range(before):
        store.act(place, "answer", 0)
    store.close()


class Browser:
    """One connection that is kept open, as a browser's is."""

    def __init__(self, link: str) -> None:
        host = re.search(r"//([\d.:]+)/", link)
        assert host
        self.host, self.connection = host[1], http.client.HTTPConnection(host[1])
        self.cookie, self.times = "", dict[str, list[float]]()
        self.cookie = self.get(link.partition(host[1])[2])[1].split(";")[0]

    def _ask(self, kind: str, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[str, str]:
        begin = time.perf_counter()
        self.connection.request(method, path, body, {"Cookie": self.cookie, **headers})
        response = self.connection.getresponse()
        content = response.read().decode()
        self.times.setdefault(kind, []).append(1000 * (time.perf_counter() - begin))
        assert response.status == 200, (response.status, path)
        return content, response.getheader("Set-Cookie", "")

    def get(self, path: str) -> tuple[str, str]:
        return self._ask("page" if "record" in path else "enter", "GET", path, None, {})

    def act(self, do: str, main: str, **more: Any) -> str:
        facts = {name: int(value) for name, value in re.findall(r'data-(place|version|last|piece)="(\d+)"', main)[:4]}
        headers = {"Content-Type": "application/json", "Origin": f"http://{self.host}"}
        content, _ = self._ask(do, "POST", "/act", json.dumps({**facts, "do": do, **more}).encode(), headers)
        return str(json.loads(content)["main"])


def measure(records: int, actions: int, before: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        screened = corpus(Path(folder), records)
        total = json.loads((screened / "manifest.json").read_text())["records"]
        answered(screened, before, before + actions)
        begin = time.perf_counter()
        command = [sys.executable, "-c", SERVE, str(screened)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout
            link = re.search(r"http\S+", server.stdout.readline())
            started = time.perf_counter() - begin
            assert link
            browser = Browser(link[0])
            main, _ = browser.get(f"/record/{before + 1}")
            browser.times.clear()
            for number in range(actions // 4):
                main = browser.act("mark", main, start=0, end=3, type="OTHER")
                main = browser.act("undo", main)
                main = browser.act("skip" if number % 10 == 9 else "answer", main)
                browser.get(f"/record/{before + number + 1}")
        finally:
            server.terminate()
            server.wait()
    every = [one for times in browser.times.values() for one in times]
    kinds = {"all": every, **browser.times}
    return {
        "records": total,
        "answered_before": before,
        "start_seconds": round(started, 2),
        "milliseconds": {
            kind: {"actions": len(times), "median": round(statistics.median(times), 1), "worst": round(max(times), 1)}
            for kind, times in kinds.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(10_000, 40, 20) if given.quick else measure(100_000, 120, 1000)
    if given.json:
        print(json.dumps(found))
        return
    print(
        f"{found['records']:,} records, {found['answered_before']:,} answered before; started in {found['start_seconds']} s"
    )
    for kind, one in found["milliseconds"].items():
        print(f"  {kind:8} {one['actions']:4} times   median {one['median']:6.1f} ms   worst {one['worst']:6.1f} ms")


if __name__ == "__main__":
    main()
