"""The README's code and commands do what they say."""

import re
import shlex
from pathlib import Path

import pytest

from confide.cli import main

TEXT = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_example_runs(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})
    assert (tmp_path / "run" / "certificate.json").exists()


def commands():
    found = re.findall(r"`(confide [^`]+)`", TEXT) + re.findall(r"^\$ (confide .+)$", TEXT, flags=re.MULTILINE)
    base = next(c for c in found if "--noise 2 --steps 320" in c)
    options = re.findall(r"`\.\.\. ([^`]+)`", TEXT)
    return [c for c in found if c.startswith("confide epsilon --")] + [f"{base} {option}" for option in options]


@pytest.mark.parametrize("command", commands())
def test_every_command_answers(command, capsys):
    with pytest.raises(SystemExit) as done:
        main(shlex.split(command)[1:])
    assert done.value.code == 0, capsys.readouterr().err
