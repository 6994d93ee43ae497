"""How long a report takes to make, how large it is, and how soon a browser shows it.

In: a run's folder (`--run`; without one, a small run with a certificate is made). Out: the seconds of `confide.report`, the
page's size, and the milliseconds from opening it to DOMContentLoaded and to the first paint in Chromium, if there is one.
`--quick` measures once, `--json` prints one object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from confide import report
from confide.accounting import LedgerWriter, PoissonGaussian, Setting, issue, read_ledger, write

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TIMES = """() => {
  const entry = performance.getEntriesByType("navigation")[0];
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  return [entry.domContentLoadedEventEnd, paint ? paint.startTime : null];
}"""


def small_run(folder: Path) -> Path:
    """A finished run as far as a report goes: nothing was trained, the certificate is a real one."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    options = {"model": "lstm", "method": "crt", "task": "causal", "keep": "last"}
    (folder / "config.yaml").write_text(yaml.safe_dump({"options": options, "screened": "", "digest": ""}))
    lines = [{"phase": "train", "epoch": n, "slot": 10 * n, "epsilon": 0.3 * n, "delta": 1e-5, "validation_loss": 2 - n / 5}
             for n in range(1, 5)]  # fmt: skip
    (folder / "telemetry.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    setting = Setting("crt", "turn", "patterns", "everything", 1000, 1.0, mask_consistent=True)
    ledger = folder / "ledger.jsonl"
    with LedgerWriter.create(ledger, setting.to_plain(), [("train", PoissonGaussian(0.05, 2.0, 40))]) as writer:
        writer.append(PoissonGaussian(0.05, 2.0, 40), "train")
    write(issue(read_ledger(ledger), 1e-5), folder / "certificate.json")
    return folder


def copied(run: Path, home: Path) -> Path:
    """The run without its weights and checkpoints, so that nothing of it is changed."""
    return Path(shutil.copytree(run, home / run.name, ignore=shutil.ignore_patterns("checkpoints", "*.safetensors")))


def opened(page: Path, times: int) -> dict[str, float] | None:
    """Median milliseconds from navigation; None without a browser."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        return None
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    measured = []
    with sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for _ in range(times):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            tab.goto(page.as_uri())
            while None in (found_times := tab.evaluate(TIMES)):  # not painted yet
                tab.wait_for_timeout(20)
            measured.append(found_times)
            tab.close()
        browser.close()
    ready, paint = zip(*measured, strict=True)
    return {
        "dom_content_loaded": round(statistics.median(ready), 1),
        "first_paint": round(statistics.median(paint), 1),
        "worst": round(max(*ready, *paint), 1),
    }


def measure(run: Path | None, times: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        folder = small_run(Path(home) / "run") if run is None else copied(run, Path(home))
        seconds = []
        for _ in range(times):
            begin = time.perf_counter()
            page = report(folder)
            seconds.append(time.perf_counter() - begin)
        return {
            "run": str(run or "made here"),
            "seconds": {"first": round(seconds[0], 2), "median": round(statistics.median(seconds), 2)},
            "kilobytes": round(page.stat().st_size / 1000, 1),
            "milliseconds": opened(page, times),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a run's folder")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.run, 1 if given.quick else 5)
    if given.json:
        print(json.dumps(found))
        return
    print(
        f"report of {found['run']}: {found['seconds']['first']} s at first, {found['seconds']['median']} s in the median"
    )
    print(f"  {found['kilobytes']:,} kB")
    shown = found["milliseconds"]
    if shown is None:
        print("  no browser to open it with")
    else:
        print(f"  DOMContentLoaded after {shown['dom_content_loaded']} ms, first paint after {shown['first_paint']} ms")


if __name__ == "__main__":
    main()
