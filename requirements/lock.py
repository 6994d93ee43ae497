"""Locks and licences: pyproject.toml in; out come the hashed versions that the Makefile installs, and docs/licences.md.

`lock.py` resolves the base package and its extras for every platform and Python of pyproject.toml, keeps the versions that are
locked already (`--upgrade` takes the newest), and writes one file a layer: each holds what the layers before it do not.
torch is pinned by version alone: indexes offer different builds of one version (with CUDA, without), each with hashes of its own.
`lock.py --licences` lists what is installed around it, so it runs in an environment that has every layer.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "requirements"
UV = "uv==0.13.7"
LAYERS = {
    "base": [],
    "train": ["train", "report", "review"],
    "dev": ["dev"],
    "bench": ["bench"],
}  # each with those before it
BY_VERSION = "torch"
ITS_OWN = re.compile(r"(nvidia|cuda|triton)(-|$)")  # what only some builds of torch bring along, pinned by torch itself
TOOLS = ("dev", "bench")  # extras that no user of confide needs


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(text: str) -> dict[str, str]:
    """The requirements of a lock, name to whole entry with its hashes."""
    entries = re.findall(r"^[A-Za-z0-9][^\\\n]*(?:\\\n[^\\\n]*)*", text, flags=re.MULTILINE)
    return {normal(re.match(r"[\w.-]+", entry)[0]): entry for entry in entries}  # type: ignore[index]


def lock(upgrade: bool) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    floor = re.search(r"[\d.]+", pyproject["project"]["requires-python"])
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        venv.create(work / "venv", with_pip=True)
        subprocess.run([work / "venv/bin/pip", "install", "--quiet", UV], check=True)
        (work / "build.in").write_text("\n".join(pyproject["build-system"]["requires"]))
        before = [*sorted(HERE.glob("*.txt")), ROOT / "constraints.txt"]
        kept = "" if upgrade else "\n".join(path.read_text() for path in before)
        pins = {name: entry.split()[0] for name, entry in locked(kept).items()}

        def resolved(extras: list[str]) -> dict[str, str]:
            (work / "pins.txt").write_text("\n".join(pins.values()))
            command = [
                work / "venv/bin/uv",
                "pip",
                "compile",
                "--quiet",
                "--universal",
                "--fork-strategy=fewest",
                "--generate-hashes",
            ]
            command += [
                "--python-version",
                floor[0] if floor else "",
                "--no-annotate",
                "--no-header",
                "--constraint",
                work / "pins.txt",
            ]
            command += [f"--extra={extra}" for extra in extras]
            done = subprocess.run(
                [*command, ROOT / "pyproject.toml", work / "build.in"], check=True, stdout=subprocess.PIPE, text=True
            )
            return locked(done.stdout)

        everything = resolved([extra for extras in LAYERS.values() for extra in extras])
        pins = {name: entry.split()[0] for name, entry in everything.items()}
        extras: list[str] = []
        before: set[str] = {BY_VERSION}
        for layer, more in LAYERS.items():
            extras += more
            own = [name for name in resolved(extras) if name not in before and not ITS_OWN.match(name)]
            before |= set(own)
            text = f"# Made by `make lock`: what {layer} needs and the layers before it do not have\n"
            (HERE / f"{layer}.txt").write_text(text + "".join(everything[name] + "\n" for name in sorted(own)))
    text = (
        "# Made by `make lock`. Without hashes: indexes offer different builds of one version, with CUDA and without\n"
    )
    (HERE.parent / "constraints.txt").write_text(f"{text}{pins[BY_VERSION]}\n")


def licence(of: Distribution) -> str:
    """The licence that a package states: its expression, else its classifier, else its first words or its licence file's."""
    meta = of.metadata
    if meta.get("License-Expression"):
        return str(meta["License-Expression"])
    classified = [
        line.split(" :: ")[-1]
        for line in meta.get_all("Classifier") or []
        if line.startswith("License :: OSI Approved ::")
    ]
    stated = (meta.get("License") or "").strip().split("\n")[0]
    files = [file for file in of.files or [] if re.search(r"LICEN[CS]E", file.name)]
    read = [line.strip() for file in files for line in file.read_text().splitlines() if "License" in line]
    found = " AND ".join(classified) or stated or (read[0] if read else "")
    if not found:
        sys.exit(f"{meta['Name']} states no licence: look it up, or do without the package")
    return found


def needed(requirements: list[str]) -> set[str]:
    """The names of all installed packages that requirements bring along; what is for another platform is not installed."""
    from packaging.requirements import Requirement

    found: dict[str, set[str]] = {}
    todo = [(Requirement(one), "") for one in requirements]
    while todo:
        one, extra = todo.pop()
        if one.marker and not one.marker.evaluate({"extra": extra}):
            continue
        name = normal(one.name)
        new = {"", *one.extras} - found.setdefault(name, set())
        found[name] |= new
        try:
            inner = (distribution(name).requires or []) if new else []
        except PackageNotFoundError:
            del found[name]
            continue
        todo += [(Requirement(line), extra) for line in inner for extra in new]
    return set(found)


def licences() -> str:
    """docs/licences.md: every package that confide or an extra of it brings along, on this platform."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parts = {"confide": set(needed(project["dependencies"]))}
    for extra in project["optional-dependencies"]:
        parts[extra] = needed([f"confide[{extra}]"]) - {"confide"} - parts["confide"]
    users = {part: names for part, names in parts.items() if part not in TOOLS}
    rows = []
    for name in sorted(set().union(*parts.values())):
        wanted = [part for part, names in users.items() if name in names]
        wanted = wanted or [part for part in TOOLS if name in parts[part]]
        one = distribution(name)
        rows.append(f"| {name} | {one.version.partition('+')[0]} | {licence(one)} | {', '.join(wanted)} |")
    return f"""# Licences

confide is under the Apache License 2.0. It ships no other package's code, and one list: `policies/words.txt` is made from SCOWL, whose notice (free use with the notice kept) stands in it. These are the packages that `pip` installs with it (`confide`) or
with an extra, as they state their licences themselves, on Linux, at the locked versions. The extras {" and ".join(f"`{tool}`" for tool in TOOLS)}
are for working on confide. None that a user needs is under the GPL or AGPL; python-stdnum is under the LGPL and is used unchanged, as a library.
Other builds of torch bring NVIDIA's libraries along, under NVIDIA's own terms. The tests of the pages use axe-core from npm, under the MPL 2.0. Made by `make lock`.

| package | version | licence | for |
|---|---|---|---|
{chr(10).join(rows)}
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="the newest versions that pyproject.toml allows")
    parser.add_argument("--licences", action="store_true", help="write docs/licences.md")
    options = parser.parse_args()
    if options.licences:
        (ROOT / "docs" / "licences.md").write_text(licences())
    else:
        lock(options.upgrade)
