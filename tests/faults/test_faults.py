"""Commands that meet a fault lose nothing and say what to do; and the harness that shows it sees a sync or a rename that is missing."""

import json
import shutil
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "src" / "confide"

RUN = """
import os, sys
log = os.open({log!r}, os.O_WRONLY | os.O_CREAT)
os.dup2(log, 1)
os.dup2(log, 2)
sys.path[:0] = [{source!r}, {here!r}]
import confide
assert confide.__file__.startswith({source!r}), confide.__file__
import harness
code = harness.main({arguments!r})
sys.stdout.flush()
os._exit(code)
"""


def harness(forks, folder, *arguments, source=PACKAGE.parent):
    """Run the harness on a source. Out: its exit code, and the lines of its log."""
    log = folder / "log.txt"
    lines = folder / "points.jsonl"
    arguments = [*map(str, arguments), "--log", str(lines)]
    code = RUN.format(log=str(log), source=str(source), here=str(HERE), arguments=arguments)
    child = forks.Process(target=exec, args=(code, {}))
    child.start()
    child.join(300)
    if child.is_alive():
        child.kill()
    assert lines.exists(), log.read_text(errors="replace")[-3000:]
    return child.exitcode, [json.loads(line) for line in lines.read_text().splitlines()]


FEW = "screen:*,train:power,train:second,review:kill,review:power"


def test_a_few_points_of_each_kind_lose_nothing_and_are_told_clearly(tmp_path, forks):
    code, lines = harness(forks, tmp_path, "--points", 13, "--seed", 4, "--only", FEW)
    assert [line for line in lines if line["outcome"] == "FAILED"] == []
    assert code == 0
    assert len(lines) == 13
    assert len({line["fault"] for line in lines}) == 9


# name: (file, what it says, what is left of it, points that must show it)
SABOTAGE = {
    "a ledger that is not synced": (
        "accounting/ledger.py",
        "            os.fsync(self._descriptor)\n        except OSError",
        "            pass\n        except OSError",
        ("--only", "train:power", "--points", 1, "--near", "open run/best.partial"),
    ),
    "a file that is not renamed into its place": (
        "rundir.py",
        "        os.replace(waiting, path)\n",
        "        path.write_bytes(waiting.read_bytes())\n",
        ("--only", "screen:power", "--points", 1, "--near", "remove screened.partial/work"),
    ),
    "names of screened files that are not synced": (
        "screening/output.py",
        "        sync_folder(self._folder)  # before a manifest says that all is there\n",
        "",
        ("--only", "screen:power", "--points", 1, "--near", "remove screened.partial/work"),
    ),
    "answers that SQLite need not sync": (
        "review/file.py",
        "PRAGMA synchronous=FULL",
        "PRAGMA synchronous=NORMAL",
        ("--only", "review:power", "--points", 4, "--near", "rename screened/review.json"),
    ),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_a_missing_sync_or_rename_is_seen(name, tmp_path, forks):
    file, right, wrong, arguments = SABOTAGE[name]
    shutil.copytree(PACKAGE, tmp_path / "confide", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "confide" / file
    source = path.read_text()
    assert source.count(right) == 1, "the sabotage no longer fits the source: update it"
    path.write_text(source.replace(right, wrong))
    code, lines = harness(forks, tmp_path, *arguments, "--lost", 1, source=tmp_path)
    assert code == 1
    assert any(line["outcome"] == "FAILED" for line in lines)
