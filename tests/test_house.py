"""The house: imports follow the data, what is installed is locked and licensed, and every module says what it is for."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = ("base", "train", "dev", "bench")

# Each part, and what it may import: the data goes from the first to the last
GROUND = (
    "errors",
    "rundir",
    "plain_yaml",
)  # without data: everything may import them, they import only those before them
BELOW = {
    "records": [],
    "sources": [],
    "arrow_sizes": [],
    "readers": ["records", "sources", "arrow_sizes"],
    "splitting": ["records"],
    "policies": ["records", "models"],
    "accounting": [],
    "dp": ["accounting"],
    "models": ["records", "sources", "readers"],
    "screening": ["records", "sources", "readers", "splitting", "policies", "accounting"],
    "purging": ["screening"],
    "generation": ["models"],
    "calculator": ["accounting"],
    "wording": ["accounting"],
    "terminal": ["accounting", "wording", "screening", "purging"],
    "review": ["records", "policies", "accounting", "screening"],
    "training": ["records", "sources", "readers", "splitting", "policies", "accounting", "dp", "models", "screening", "review", "purging"],
    "attacks": ["records", "policies", "accounting", "dp", "models", "screening", "generation", "terminal", "training", "wording"],
    "reporting": ["wording", "policies", "accounting", "screening", "training", "purging", "attacks"],
    "config": ["records", "models", "screening", "training", "attacks"],
}  # fmt: skip
ABOVE = {
    "__init__",
    "__main__",
    "cli",
    "commands",
    "demo",
    "experiments",
}  # these may import everything, but for experiments


@cache
def modules():
    """Every module: its name, and its tree."""
    found = {}
    for path in sorted((SOURCE / "confide").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[parts[:-1] if parts[-1] == "__init__" else parts] = ast.parse(path.read_text())
    return found


@cache
def imports():
    """Every import, wherever it stands in a module: (module, what it imports from, name)."""
    found = []
    for module, tree in modules().items():
        package = module if (SOURCE.joinpath(*module) / "__init__.py").exists() else module[:-1]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found += [(module, tuple(alias.name.split(".")), "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else ()
                base += tuple(node.module.split(".")) if node.module else ()
                for alias in node.names:
                    inner = (*base, alias.name)
                    found.append((module, inner if inner in modules() else base, alias.name))
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
                named = [one.value for one in node.args[:1] if isinstance(one, ast.Constant)]
                found += [(module, tuple(str(name).split(".")), "") for name in named]
    return found


def part(module):
    return module[1] if len(module) > 1 else "__init__"


def test_every_module_says_what_it_is_for():
    assert not [".".join(module) for module, tree in modules().items() if not ast.get_docstring(tree)]


def test_only_the_command_line_imports_the_experiments():
    users = {part(module) for module, target, _ in imports() if target[:2] == ("confide", "experiments")}
    assert users <= {"cli", "experiments"}


def test_imports_follow_the_data():
    below = {
        **{name: GROUND[:place] for place, name in enumerate(GROUND)},
        **{name: (*GROUND, *some) for name, some in BELOW.items()},
    }
    assert {part(module) for module in modules()} == set(below) | ABOVE
    wrong = {
        f"{'.'.join(module)} imports {'.'.join(target)}"
        for module, target, name in imports()
        if target[0] == "confide" and part(module) in below and part(target) != part(module) and name != "__version__"
        if part(target) not in below[part(module)]
    }
    assert not wrong


def test_no_module_reaches_into_another_for_a_private_name():
    private = re.compile(r"_(?!_)")
    taken = {
        f"{'.'.join(module)} takes {name} from {'.'.join(target)}"
        for module, target, name in imports()
        if target[0] == "confide" and private.match(name)
    }
    assert not taken
    # attributes too: what one module calls its own, another neither reads nor asks for by name
    own = {module: {name for node in ast.walk(tree) for name in _given(node)} for module, tree in modules().items()}
    known = {name for names in own.values() for name in names if private.match(name)}
    reached = {
        f"{'.'.join(module)}:{node.lineno} {name}"
        for module, tree in modules().items()
        for node in ast.walk(tree)
        for name in _asked(node)
        if name in known and name not in own[module]
    }
    assert not reached


def _asked(node):
    """The attributes that an expression reads."""
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr"):
        yield from (one.value for one in node.args[1:2] if isinstance(one, ast.Constant))


def _given(node):
    """The names that a definition or an assignment gives."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.attr if isinstance(node, ast.Attribute) else node.id


def test_the_accounting_needs_no_torch():
    """By what it says, and by what is there when all of it is imported."""
    parts = {
        name: {target[0] for module, target, _ in imports() if part(module) == name} for name in ("accounting", *GROUND)
    }
    libraries = {name: roots - {"confide"} - sys.stdlib_module_names for name, roots in parts.items()}
    assert libraries.pop("accounting") == {"numpy", "scipy", "dp_accounting"}
    assert set().union(*libraries.values()) == {"yaml"}  # what it may import besides
    names = [".".join(module) for module in modules() if module[:2] == ("confide", "accounting")]
    code = f"import sys, importlib; [importlib.import_module(name) for name in {names}]; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# -- the supply chain --------------------------------------------------------------------------------------------------


def normal(name):
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", name)[0]).lower()


def entries(layer):
    """The requirements of a lock: name to the rest of its entry."""
    text = (ROOT / "requirements" / f"{layer}.txt").read_text()
    joined = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    return {normal(line): line for line in joined}


def direct(*extras):
    """The packages that pyproject.toml names, by the extras that ask for them."""
    every = PROJECT["optional-dependencies"]
    named = PROJECT["dependencies"] + [one for extra in extras for one in every[extra]]
    inner = [extra for one in named if normal(one) == "confide" for extra in re.search(r"\[(.*)\]", one)[1].split(",")]
    return {normal(one) for one in named if normal(one) != "confide"} | (direct(*inner) if inner else set())


def test_everything_that_is_installed_is_locked_by_its_hashes():
    locked = {}
    for layer, extras in zip(LOCKS, ([], ["train", "report"], ["dev"], ["bench"]), strict=True):
        new = entries(layer)
        assert not new.keys() & locked.keys(), "one package, one layer"
        locked |= new
        assert direct(*extras) - locked.keys() <= {"torch"}, "run `make lock`"
    assert "setuptools" in entries("base"), "the package itself is built without the network"
    for name, entry in locked.items():
        assert re.match(r"[\w.-]+==[\w.]+ ", entry), name
        assert re.search(r" --hash=sha256:[0-9a-f]{64}", entry), name
    assert re.fullmatch(r"torch==[\d.]+", (ROOT / "constraints.txt").read_text().splitlines()[-1])


def test_what_the_pages_are_tested_with_is_locked_too():
    locked = json.loads((ROOT / "requirements" / "package-lock.json").read_text())["packages"]
    wanted = json.loads((ROOT / "requirements" / "package.json").read_text())["devDependencies"]
    assert {f"node_modules/{name}": version for name, version in wanted.items()} == {
        name: one["version"] for name, one in locked.items() if name
    }
    assert all(one["integrity"].startswith("sha512-") for name, one in locked.items() if name)


def test_no_lock_names_a_registry_or_a_path():
    for path in (ROOT / "requirements").iterdir():
        if path.suffix in (".txt", ".json"):
            assert not re.search(r"://|index-url|find-links|file:", path.read_text()), path.name


def listed():
    """docs/licences.md: package to (version, licence, parts)."""
    rows = re.findall(
        r"^\| ([\w.-]+) \| (\S+) \| (.+) \| (.+) \|$", (ROOT / "docs" / "licences.md").read_text(), re.MULTILINE
    )
    return {name: (version, licence, parts.split(", ")) for name, version, licence, parts in rows if name != "package"}


def test_every_dependency_is_listed_with_its_licence():
    rows = listed()
    every = direct(*PROJECT["optional-dependencies"])
    assert every <= rows.keys(), "run `make lock`"
    locked = {name: entry for layer in LOCKS for name, entry in entries(layer).items()}
    locked["torch"] = (ROOT / "constraints.txt").read_text().splitlines()[-1]
    assert {name: f"{name}=={version}" for name, (version, _, _) in rows.items()} == {
        name: re.sub(r"^[\w.-]+==", f"{name}==", locked[name].split()[0]) for name in rows
    }
    elsewhere = {name for name in locked.keys() - rows.keys() if not re.search(r"sys_platform|platform_", locked[name])}
    assert elsewhere <= {"setuptools"}


def test_nothing_that_users_get_is_under_a_licence_that_would_bind_them():
    binding = re.compile(r"(?<!L)GPL|Affero|(?<!Lesser )General Public License")
    assert all(binding.search(one) for one in ("GPL-3.0-or-later", "AGPL-3.0", "GNU General Public License v3 (GPLv3)"))
    users = {name: licence for name, (_, licence, parts) in listed().items() if not {"dev", "bench"} >= set(parts)}
    assert not {name for name, licence in users.items() if binding.search(licence)}
