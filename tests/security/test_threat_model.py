"""docs/security.md: every test it names exists, every attacker has one, and README leads to it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = re.findall(r"`(tests/[\w/.]+\.py)::(\w+)`", PAGE)


def missing(named):
    files = {file: (ROOT / file).read_text() if (ROOT / file).is_file() else "" for file, _ in named}
    return [
        f"{file}::{test}" for file, test in named if not re.search(rf"^def {test}\(", files[file], flags=re.MULTILINE)
    ]


def test_every_test_that_is_named_exists():
    assert len(NAMED) >= 20
    assert missing(NAMED) == []
    assert missing([*NAMED, ("tests/test_cli.py", "test_of_nothing"), ("tests/no.py", "test_a")]) == [
        "tests/test_cli.py::test_of_nothing",
        "tests/no.py::test_a",
    ]


def test_every_attacker_has_a_defence_and_a_test():
    table = PAGE.split("## Who, from what, by what")[1].split("\n\n")[1]
    rows = [row.strip("|").split(" | ") for row in table.splitlines()[2:]]
    assert len(rows) >= 12
    for row in rows:
        assert len(row) == 4, row[0]
        assert all(cell.strip() for cell in row), row[0]
        assert "::test_" in row[3], row[0]


def test_the_readme_leads_to_it():
    assert "(docs/security.md)" in (ROOT / "README.md").read_text()
